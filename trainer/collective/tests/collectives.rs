//! Process groups of two ranks on threads: every collective, several process groups on one store,
//! and errors of missing peers.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::TcpStream;
use std::time::Duration;

use rljob_collective::{CollectiveError, Group, Store};
use tch::{Device, Kind, Tensor};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `body` as each of two ranks that share a store; returns the results in order of rank.
fn two_ranks<T: Send>(body: impl Fn(&Store, u32) -> T + Sync) -> [T; 2] {
    let host = Store::host("127.0.0.1", 0, TIMEOUT).unwrap();
    let port = host.port();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| body(&Store::connect("127.0.0.1", port, TIMEOUT).unwrap(), 1));
        let first = body(&host, 0);
        [first, second.join().expect("rank 1 panicked")]
    })
}

fn join(store: &Store, name: &str, rank: u32) -> Group {
    Group::join(store, name, rank, 2, "127.0.0.1", TIMEOUT).unwrap()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.to_kind(Kind::Float)).unwrap()
}

fn zeros(length: i64, kind: Kind) -> Tensor {
    Tensor::zeros([length], (kind, Device::Cpu))
}

#[test]
fn every_collective_has_the_expected_result_on_each_rank() {
    let answers = two_ranks(|store, rank| {
        let group = join(store, "all", rank);
        let own = Tensor::from_slice(&[1.0_f32, 2.0]) * f64::from(rank + 1);
        let (gathered, scattered, sum) = (zeros(4, Kind::Float), zeros(2, Kind::Float), own.copy());
        group.all_gather(&gathered, &own).unwrap();
        group.reduce_scatter(&scattered, &gathered).unwrap();
        group.all_reduce(&sum).unwrap();
        let given = own.copy();
        group.broadcast(&given, 1).unwrap();
        group.barrier().unwrap();
        [gathered, scattered, sum, given].map(|tensor| floats(&tensor))
    });
    let (gathered, sum, given) = (vec![1.0, 2.0, 2.0, 4.0], vec![3.0, 6.0], vec![2.0, 4.0]);
    assert_eq!(answers[0], [gathered.clone(), vec![2.0, 4.0], sum.clone(), given.clone()]);
    assert_eq!(answers[1], [gathered, vec![4.0, 8.0], sum, given]);
}

#[test]
fn a_store_listens_on_its_address_only() {
    let store = Store::host("127.0.0.1", 0, TIMEOUT).unwrap();
    // Both addresses are on the loopback interface.
    let connects = |host: &str| TcpStream::connect((host, store.port())).is_ok();
    assert_eq!((connects("127.0.0.1"), connects("127.0.0.2")), (true, false));
}

#[test]
fn groups_join_over_ipv6() {
    let Ok(host) = Store::host("::1", 0, TIMEOUT) else { return };
    let port = host.port();
    let sum = |store: &Store, rank: u32| {
        let group = Group::join(store, "six", rank, 2, "::1", TIMEOUT).unwrap();
        let own = Tensor::from_slice(&[1.0_f32 + rank as f32]);
        group.all_reduce(&own).unwrap();
        floats(&own)
    };
    std::thread::scope(|scope| {
        let second = scope.spawn(|| sum(&Store::connect("::1", port, TIMEOUT).unwrap(), 1));
        assert_eq!((sum(&host, 0), second.join().expect("rank 1")), (vec![3.0], vec![3.0]));
    });
}

#[test]
fn bf16_and_bytes_are_transferred_unchanged() {
    let answers = two_ranks(|store, rank| {
        let group = join(store, "kinds", rank);
        let own =
            (Tensor::from_slice(&[1.5_f32, -3.0]) * f64::from(rank + 1)).to_kind(Kind::BFloat16);
        let gathered = zeros(4, Kind::BFloat16);
        group.all_gather(&gathered, &own).unwrap();
        group.broadcast(&own, 0).unwrap();
        let text =
            if rank == 0 { Tensor::from_slice(b"{\"step\":7}") } else { zeros(10, Kind::Uint8) };
        group.broadcast(&text, 0).unwrap();
        (floats(&gathered), floats(&own), Vec::<u8>::try_from(&text).unwrap())
    });
    for answer in answers {
        assert_eq!(answer, (vec![1.5, -3.0, 3.0, -6.0], vec![1.5, -3.0], b"{\"step\":7}".to_vec()));
    }
}

#[test]
fn one_store_serves_several_process_groups() {
    let answers = two_ranks(|store, rank| {
        let groups = [join(store, "a", rank), join(store, "b", rank)];
        let weights =
            Group::join_weight_update(store, "weights-1", rank, 2, "127.0.0.1", TIMEOUT).unwrap();
        groups.iter().chain([&weights]).map(|group| floats(&all_reduced(group))).collect::<Vec<_>>()
    });
    assert_eq!(answers, [vec![vec![2.0]; 3], vec![vec![2.0]; 3]]);
}

#[test]
fn a_missing_peer_does_not_delay_other_process_groups() {
    let store = Store::host("127.0.0.1", 0, TIMEOUT).unwrap();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| join(&store, "late", 0));
        let peer = scope.spawn(|| join(&store, "prompt", 1));
        let prompt = join(&store, "prompt", 0);
        drop((peer.join().expect("the prompt peer panicked"), prompt));
        // The late peer joins last: joins that are executed one after another would deadlock.
        let peer = join(&store, "late", 1);
        assert_eq!((late.join().expect("the late group failed").rank(), peer.rank()), (0, 1));
    });
}

fn all_reduced(group: &Group) -> Tensor {
    let one = Tensor::ones([1], (Kind::Float, Device::Cpu));
    group.all_reduce(&one).unwrap();
    one
}

#[test]
fn joining_without_a_peer_fails_after_the_timeout() {
    let store = Store::host("127.0.0.1", 0, Duration::from_secs(1)).unwrap();
    let error =
        Group::join(&store, "lonely", 0, 2, "127.0.0.1", Duration::from_secs(1)).unwrap_err();
    assert_eq!(
        (error.operation.as_str(), error.place.as_str()),
        ("join process group `lonely` from 127.0.0.1", "rank 0 of 2")
    );
}

#[test]
fn the_error_of_a_disconnected_peer_names_operation_and_rank() {
    let answers = two_ranks(|store, rank| {
        let group =
            Group::join(store, "left", rank, 2, "127.0.0.1", Duration::from_secs(30)).unwrap();
        if rank == 1 {
            return Ok(());
        }
        group.all_reduce(&Tensor::ones([2], (Kind::Float, Device::Cpu)))
    });
    let CollectiveError { operation, place, message } = answers[0].clone().unwrap_err();
    assert_eq!(
        (operation.as_str(), place.as_str()),
        ("all-reduce Float [2]", "rank 0 of 2 in process group `left`")
    );
    assert!(message.contains("127.0.0.1"), "{message}");
}

#[test]
fn mismatched_sizes_are_rejected_before_any_transfer() {
    let answers = two_ranks(|store, rank| {
        let group = join(store, "sizes", rank);
        // A member that ends closes its connections, also to one that is still joining.
        group.barrier().unwrap();
        group.all_gather(&zeros(3, Kind::Float), &zeros(2, Kind::Float)).unwrap_err().message
    });
    for message in answers {
        assert!(
            message.ends_with(
                "must be contiguous, of one kind, and whole must be 2 times as long as part"
            ),
            "{message}"
        );
    }
}

#[test]
fn the_error_of_a_missing_store_has_its_address() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = Store::connect("127.0.0.1", port, Duration::from_secs(1)).unwrap_err();
    assert_eq!(
        (error.operation.as_str(), error.place),
        ("connect to the store", format!("127.0.0.1:{port}"))
    );
}
