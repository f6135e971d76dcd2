//! Ranks compute what one rank computes: the loss to 1e-6 of itself, gradients to 1e-5 of their
//! tensor's maximum.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ranks;

#[test]
fn two_and_four_ranks_compute_the_loss_and_the_gradients_of_one() {
    for world_size in [2, 4] {
        let [loss, gradient] = ranks::differences(world_size);
        assert!(
            loss <= 1e-6 && gradient <= 1e-5,
            "{world_size} ranks: loss {loss:.1e}, gradient {gradient:.1e}"
        );
    }
}
