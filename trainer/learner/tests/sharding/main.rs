//! Loss and gradients on several ranks compared with one: within 1e-6 of the loss, and 1e-5 of a
//! gradient's maximum.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ranks;

use rljob_crds::algorithm::Sharding;

fn assert_equal_to_one_rank(sharding: Sharding) {
    for world_size in [2, 4] {
        let [loss, gradient] = ranks::differences(world_size, sharding);
        assert!(
            loss <= 1e-6 && gradient <= 1e-5,
            "{world_size} ranks, {sharding:?}: loss {loss:.1e}, gradient {gradient:.1e}"
        );
    }
}

#[test]
fn two_and_four_ranks_have_the_loss_and_gradients_of_one() {
    assert_equal_to_one_rank(Sharding::Full);
}

#[test]
fn ranks_that_sum_once_a_minibatch_have_the_loss_and_gradients_of_one() {
    assert_equal_to_one_rank(Sharding::Gradients);
}

#[test]
fn two_replicas_of_one_and_of_two_ranks_have_the_loss_and_gradients_of_one_rank() {
    assert_equal_to_one_rank(Sharding::Hybrid);
}

#[test]
fn ranks_that_sum_once_a_minibatch_repeat_their_bits() {
    for (world_size, sharding) in [(2, Sharding::Gradients), (4, Sharding::Hybrid)] {
        let first = ranks::on_ranks(world_size, sharding);
        assert_eq!(ranks::on_ranks(world_size, sharding), first, "{sharding:?}");
    }
}
