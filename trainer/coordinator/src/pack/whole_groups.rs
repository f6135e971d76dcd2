//! Group assignment: places whole prompt groups on ranks and in micro-batches, for samples that
//! learners compare with each other. A group is assigned as if it were one sample; one with more
//! tokens than the limit is alone in its micro-batch.

use std::ops::Range;

use super::assignment::{self, Plan};
use super::part::{Member, Part};

/// Assigns samples of the given loads; minibatch `m` has the samples `minibatches[m]`, which are
/// whole groups.
pub fn assign(
    members: &[Member],
    minibatches: &[Range<usize>],
    world_size: u32,
    max_tokens: u64,
) -> Plan {
    let groups: Vec<&[Member]> = members.chunk_by(|one, next| one.group == next.group).collect();
    let load = |group: &[Member]| Part::of(group.iter().copied().enumerate()).load;
    let as_members: Vec<Member> =
        (0..).zip(&groups).map(|(index, group)| Member::alone(index, load(group))).collect();
    let end_of = |end: &mut usize, group: &&[Member]| {
        *end = end.saturating_add(group.len());
        Some(*end)
    };
    let ends: Vec<usize> = groups.iter().scan(0, end_of).collect();
    // Groups that end at or before a sample.
    let group_at = |sample: usize| ends.partition_point(|end| *end <= sample);
    let parts: Vec<Range<usize>> =
        minibatches.iter().map(|part| group_at(part.start)..group_at(part.end)).collect();
    let plan = assignment::assign(&as_members, &parts, world_size, max_tokens);
    let of_group = |(group, place): (&&[Member], _)| std::iter::repeat_n(place, group.len());
    let assignments = groups.iter().zip(plan.assignments).flat_map(of_group).collect();
    Plan { assignments, ..plan }
}

#[cfg(test)]
mod tests {
    use super::super::cost::Load;
    use super::super::part::Member;
    use super::assign;

    /// Pairs of these completions after a shared prompt of 4 tokens.
    fn pairs(completions: &[[u64; 2]]) -> Vec<Member> {
        let load = |tokens| Load { tokens, cost: tokens };
        let member = |group, rest| Member { group, prompt: load(4), rest: load(rest) };
        (0..)
            .zip(completions)
            .flat_map(|(group, two)| two.map(|rest| member(group, rest)))
            .collect()
    }

    #[test]
    fn both_samples_of_a_pair_are_in_one_micro_batch_of_one_rank() {
        let members = pairs(&[[9, 1], [3, 3], [30, 2], [5, 6], [1, 1]]);
        for (world_size, max_tokens) in [(1, 20), (2, 20), (3, 1), (4, 1000)] {
            let plan = assign(&members, &[0..4, 4..10], world_size, max_tokens);
            let minibatches = plan.assignments.iter().map(|place| place.minibatch);
            assert_eq!(minibatches.collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
            for pair in plan.assignments.chunks(2) {
                assert_eq!(pair[0], pair[1], "{world_size} ranks, {max_tokens} tokens");
            }
        }
    }

    #[test]
    fn micro_batches_have_room_for_shared_prompts_once() {
        // 4 + 6 and 4 + 6 tokens: together 20.
        let members = pairs(&[[3, 3], [2, 4]]);
        let whole = std::slice::from_ref(&(0..4));
        let micro_batches = |limit| assign(&members, whole, 1, limit).micro_batch_minibatch.len();
        assert_eq!([20, 19].map(micro_batches), [1, 2]);
    }
}
