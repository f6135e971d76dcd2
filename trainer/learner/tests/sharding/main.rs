//! Loss and gradients on several ranks compared with one: within 1e-6 of the loss, and 1e-5 of a
//! gradient's maximum.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ranks;

#[test]
fn two_and_four_ranks_have_the_loss_and_gradients_of_one() {
    for world_size in [2, 4] {
        let [loss, gradient] = ranks::differences(world_size);
        assert!(
            loss <= 1e-6 && gradient <= 1e-5,
            "{world_size} ranks: loss {loss:.1e}, gradient {gradient:.1e}"
        );
    }
}
