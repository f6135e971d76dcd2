//! Learners on two GPUs of one machine, with a thread or a process each. Needs GPUs 0 and 1:
//! `CUDA_VISIBLE_DEVICES=0,1`. With fewer, the tests print `skipped`.

use std::process::{Child, Command};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rljob_collective::{CollectiveError, DeviceEvent, DeviceGroup, Store, Stream};
use rljob_crds::algorithm::Sharding;
use rljob_learner::fsdp::{Passes, ShardedParameters, shard_of};
use rljob_learner::mesh::{GroupSize, Mesh};
use rljob_learner::model::Parameters as _;
use rljob_learner::ranks::Ranks;
use tch::{Device, Kind, Tensor};

/// Elements of the blocks: those of the layers differ, and are no multiples of the number of ranks.
const NUMELS: [i64; 5] = [1001, 515, 333, 517, 77];
/// Longest wait of a test for a peer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which a rank must report that its peer has ended.
const NOTICED: Duration = Duration::from_secs(20);
/// Variable of the process that is the peer: the port of the store.
const PEER: &str = "RLJOB_TEST_PEER_PORT";

fn have_two() -> bool {
    let found = tch::Cuda::device_count();
    if found < 2 {
        eprintln!("skipped: needs two GPUs, {found} found");
    }
    found >= 2
}

fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Runs `rank` on a thread for each GPU.
fn on_two<T: Send>(rank: impl Fn(Rc<Ranks>) -> T + Sync, sharding: Sharding) -> [T; 2] {
    let port = free_port();
    let of = |number: u32| {
        let size = GroupSize { world_size: 2, local_world_size: 1 };
        let mesh = Mesh::new(number, size, sharding);
        let device = Device::Cuda(number as usize);
        let address = "127.0.0.1";
        rank(Ranks::join((address, port), address, mesh, device, 0).unwrap())
    };
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|number| scope.spawn(move || of(number)));
        threads.map(|thread| thread.join().unwrap())
    })
}

fn block(index: usize) -> Tensor {
    let numel = NUMELS[index];
    (Tensor::arange(numel, (Kind::Float, Device::Cpu)) * 0.5 + index as f64) / 64.0
}

fn parameters(ranks: &Rc<Ranks>, sharding: Sharding, offload: bool) -> ShardedParameters {
    let mesh = ranks.mesh();
    let masters = (0..NUMELS.len())
        .map(|index| shard_of(&block(index), mesh.shard(), mesh.shards()))
        .collect();
    let passes = Passes { compute: Kind::BFloat16, sharding, offload };
    ShardedParameters::new(Rc::clone(ranks), passes, &NUMELS, masters).unwrap()
}

#[test]
fn gathered_blocks_and_summed_gradients_are_those_of_one_gpu() {
    if !have_two() {
        return;
    }
    for (sharding, offload) in [
        (Sharding::Full, false),
        (Sharding::Full, true),
        (Sharding::Gradients, false),
        (Sharding::Hybrid, false),
        (Sharding::Hybrid, true),
    ] {
        let results = on_two(
            |ranks| {
                let mut parameters = parameters(&ranks, sharding, offload);
                parameters.begin_minibatch(2);
                let mut blocks = Vec::new();
                for _ in 0..2 {
                    let order: Vec<usize> = (0..NUMELS.len()).collect();
                    for (at, index) in order.iter().enumerate() {
                        let weights = parameters.weights(*index, order.get(at + 1).copied());
                        blocks.push(weights.unwrap().to_device(Device::Cpu));
                    }
                    for index in order.into_iter().rev() {
                        let weights = parameters.weights(index, index.checked_sub(1)).unwrap();
                        let mut gradient = parameters.gradient(index).unwrap();
                        let mut part = weights.to_kind(Kind::Float) * f64::from(ranks.rank() + 1);
                        if gradient.has_values {
                            part += &gradient.flat;
                        }
                        gradient.flat.copy_(&part);
                        gradient.has_values = true;
                        parameters.add_gradient(index, gradient).unwrap();
                    }
                    parameters.end_pass().unwrap();
                }
                parameters.finish_gradients().unwrap();
                let shards = parameters.shards().iter();
                let shards: Vec<Tensor> =
                    shards.map(|shard| shard.gradient.to_device(Device::Cpu)).collect();
                (ranks.mesh(), blocks, shards)
            },
            sharding,
        );
        for (mesh, blocks, shards) in results {
            for (at, found) in blocks.iter().enumerate() {
                let expected = block(at % NUMELS.len()).to_kind(Kind::BFloat16);
                assert_eq!(*found, expected, "{sharding:?}, offload {offload}, block {at}");
            }
            for (index, found) in shards.iter().enumerate() {
                // Two passes, with factors 1 and 2 of the ranks.
                let whole = block(index).to_kind(Kind::BFloat16).to_kind(Kind::Float) * 6.0;
                let expected = shard_of(&whole, mesh.shard(), mesh.shards());
                assert_eq!(
                    *found, expected,
                    "{sharding:?}, offload {offload}, gradient of block {index}"
                );
            }
        }
    }
}

#[test]
fn numbers_are_summed_on_the_device_over_shards_and_replicas() {
    if !have_two() {
        return;
    }
    for (sharding, expected) in [(Sharding::Full, [3.0, 30.0]), (Sharding::Hybrid, [3.0, 10.0])] {
        let [first, _] = on_two(
            |ranks| {
                let own = [f64::from(ranks.rank() + 1), 10.0 * f64::from(ranks.rank() + 1)];
                let numbers = Tensor::from_slice(&own).to_device(ranks.device());
                ranks.sum_on_device(&numbers).unwrap();
                Vec::<f64>::try_from(&numbers.to_device(Device::Cpu)).unwrap()
            },
            sharding,
        );
        assert_eq!(first, expected, "{sharding:?}");
    }
}

/// A group of rank 0 on GPU 0, for weight updates.
fn sender(store: &Store, name: &str, timeout: Duration) -> Result<DeviceGroup, CollectiveError> {
    DeviceGroup::join_weight_update(store, name, (0, 2), 0, timeout)
}

#[test]
fn a_group_whose_peer_is_missing_ends_with_its_timeout() {
    if !have_two() {
        return;
    }
    let store = Store::host("127.0.0.1", 0, TIMEOUT).unwrap();
    let began = Instant::now();
    let error = sender(&store, "alone", Duration::from_secs(3)).unwrap_err();
    assert_eq!(error.message, "timed out; a peer may be missing");
    assert!(began.elapsed() < NOTICED, "{:?}", began.elapsed());
}

/// Starts the test `name` of this program as the peer of `store`, on GPU 1.
fn peer(store: &Store, name: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(PEER, store.port().to_string())
        .spawn()
        .unwrap()
}

/// The peer of the tests below, in a separate process, which alone has the port: receives one
/// broadcast, and then waits to be killed.
#[test]
fn as_peer() {
    let Ok(port) = std::env::var(PEER) else { return };
    let port = port.parse().unwrap();
    let store = Store::connect("127.0.0.1", port, TIMEOUT).unwrap();
    let group = DeviceGroup::join_weight_update(&store, "pair", (1, 2), 1, TIMEOUT).unwrap();
    let received = Tensor::zeros([1 << 20], (Kind::Float, Device::Cuda(1)));
    group.broadcast(&received, 0).unwrap();
    group.finish().unwrap();
    std::thread::sleep(TIMEOUT);
}

/// A sender whose peer was killed after a broadcast, with another broadcast under way.
fn after_the_death_of_a_peer(timeout: Duration) -> (DeviceGroup, Tensor) {
    let store = Store::host("127.0.0.1", 0, TIMEOUT).unwrap();
    let mut peer = peer(&store, "two_gpus::as_peer");
    let group = sender(&store, "pair", timeout).unwrap();
    let content = Tensor::ones([1 << 20], (Kind::Float, Device::Cuda(0)));
    let event = DeviceEvent::new().unwrap();
    event.record(Stream::Compute).unwrap();
    event.wait(Stream::Of(&group)).unwrap();
    group.broadcast(&content, 0).unwrap();
    group.finish().unwrap();
    peer.kill().unwrap();
    peer.wait().unwrap();
    group.broadcast(&content, 0).unwrap();
    (group, content)
}

#[test]
fn a_broadcast_to_a_killed_peer_ends_with_its_timeout_and_another_group_is_formed() {
    if !have_two() {
        return;
    }
    let began = Instant::now();
    let (group, content) = after_the_death_of_a_peer(Duration::from_secs(5));
    let error = group.finish().unwrap_err();
    assert!(began.elapsed() < TIMEOUT, "{error}: {:?}", began.elapsed());
    let error = group.broadcast(&content, 0).unwrap_err();
    assert_eq!(error.message, "the process group failed before");
    drop(group);
    let store = Store::host("127.0.0.1", 0, TIMEOUT).unwrap();
    let mut again = peer(&store, "two_gpus::as_peer");
    let group = sender(&store, "pair", TIMEOUT).unwrap();
    group.broadcast(&content, 0).unwrap();
    group.finish().unwrap();
    again.kill().unwrap();
    again.wait().unwrap();
}

#[test]
fn a_broadcast_that_is_given_up_ends_at_once_and_frees_the_gpu() {
    if !have_two() {
        return;
    }
    let (group, _content) = after_the_death_of_a_peer(TIMEOUT);
    let began = Instant::now();
    let given_up = std::sync::atomic::AtomicBool::new(true);
    group.finish_unless(&given_up).unwrap_err();
    drop(group);
    // Waits for all operations of the GPU.
    tch::Cuda::synchronize(0);
    assert!(began.elapsed() < NOTICED, "{:?}", began.elapsed());
}

#[test]
fn memory_that_ends_is_an_error_and_the_gpu_can_be_used_afterwards() {
    if !have_two() {
        return;
    }
    let device = Device::Cuda(1);
    let mut held = Vec::new();
    let error = loop {
        match Tensor::f_empty([1 << 30], (Kind::Float, device)) {
            Ok(tensor) => held.push(tensor),
            Err(error) => break error,
        }
        assert!(held.len() < 1024, "a GPU has less than 4 TiB");
    };
    assert!(error.to_string().contains("out of memory"), "{error}");
    drop(held);
    let one = Tensor::ones([1 << 20], (Kind::Float, device));
    assert_eq!(one.sum(Kind::Double).double_value(&[]), f64::from(1 << 20));
}
