//! A least number of engines for a queue that is above their number.

use rljob_crds::RLJobSpec;

use crate::validate::Problem;

/// Names it. It is no error: `inference.replicas` may be lowered below it while the run is active,
/// and it may not.
pub(super) fn check_least_engines(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let replicas = spec.inference.replicas;
    if let Some(least) = spec.inference.min_replicas.filter(|least| *least > replicas) {
        let message = format!(
            "has no effect: {least} is above inference.replicas, {replicas}; a queue admits the \
             job with all of its engines only"
        );
        warnings.push(Problem::new("spec.inference.minReplicas", message));
    }
}

#[cfg(test)]
mod tests {
    use super::super::warnings;
    use crate::validate::test_support::minimal;

    #[test]
    fn a_least_number_of_engines_above_their_number_is_named() {
        let of = |least, replicas| {
            let mut spec = minimal().spec;
            spec.inference.min_replicas = least;
            spec.inference.replicas = replicas;
            warnings(&spec).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let above = "spec.inference.minReplicas: has no effect: 3 is above inference.replicas, 2; \
                     a queue admits the job with all of its engines only";
        assert_eq!(of(Some(3), 2), [above]);
        let others = [of(Some(2), 2), of(Some(1), 2), of(None, 2)];
        assert_eq!(others.concat(), Vec::<String>::new());
    }
}
