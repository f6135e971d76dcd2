//! Learners on two GPUs of one machine, with a process each that sees one GPU, as a supervisor
//! starts them. Needs two GPUs: `CUDA_VISIBLE_DEVICES=0,1`. With fewer, the tests print `skipped`.

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
const GPU: Device = Device::Cuda(0);
/// Longest wait of a test for a peer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which a rank must report that its peer has ended.
const NOTICED: Duration = Duration::from_secs(20);
/// Variables of the processes that a test starts: their rank, and the ports of their stores.
const RANK: &str = "RLJOB_TEST_RANK";
const PORTS: &str = "RLJOB_TEST_PORTS";

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

/// Starts the test `name` of this program as a process that sees GPU `rank` only.
fn start(name: &str, rank: usize, ports: &[u16]) -> Child {
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_else(|_| "0,1".to_owned());
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env("CUDA_VISIBLE_DEVICES", visible.split(',').nth(rank).unwrap())
        .env(RANK, rank.to_string())
        .env(PORTS, ports.join(","))
        .spawn()
        .unwrap()
}

/// The rank and the ports of a process that a test started.
fn started() -> Option<(u32, Vec<u16>)> {
    let rank = std::env::var(RANK).ok()?.parse().unwrap();
    let ports = std::env::var(PORTS).unwrap();
    Some((rank, ports.split(',').map(|port| port.parse().unwrap()).collect()))
}

/// Runs the test `name`, which calls this, as a process for each of two GPUs, and `check` in both
/// for each case, whose ranks have its sharding.
fn on_two<C: Copy>(name: &str, cases: &[(Sharding, C)], check: impl Fn(Rc<Ranks>, Sharding, C)) {
    if let Some((rank, ports)) = started() {
        let size = GroupSize { world_size: 2, local_world_size: 1 };
        for ((sharding, case), port) in cases.iter().zip(ports) {
            let (mesh, address) = (Mesh::new(rank, size, *sharding), "127.0.0.1");
            let ranks = Ranks::join((address, port), address, mesh, GPU, 0).unwrap();
            check(ranks, *sharding, *case);
        }
        return;
    }
    if !have_two() {
        return;
    }
    let ports: Vec<u16> = cases.iter().map(|_| free_port()).collect();
    let mut ranks = [0, 1].map(|rank| start(name, rank, &ports));
    let began = Instant::now();
    while ranks.iter_mut().any(|rank| rank.try_wait().unwrap().is_none()) {
        if began.elapsed() > TIMEOUT {
            ranks.iter_mut().for_each(|rank| drop(rank.kill()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = ranks.map(|mut rank| rank.wait().unwrap());
    assert!(ended.iter().all(std::process::ExitStatus::success), "ranks ended with {ended:?}");
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
    const CASES: [(Sharding, bool); 5] = [
        (Sharding::Full, false),
        (Sharding::Full, true),
        (Sharding::Gradients, false),
        (Sharding::Hybrid, false),
        (Sharding::Hybrid, true),
    ];
    let name = "two_gpus::gathered_blocks_and_summed_gradients_are_those_of_one_gpu";
    on_two(name, &CASES, |ranks, sharding, offload| {
        let case = format!("{sharding:?}, offload {offload}");
        let mut parameters = parameters(&ranks, sharding, offload);
        parameters.begin_minibatch(2);
        for _ in 0..2 {
            pass(&mut parameters, ranks.rank(), &case);
        }
        parameters.finish_gradients().unwrap();
        let mesh = ranks.mesh();
        for (index, shard) in parameters.shards().iter().enumerate() {
            let block = block(index).to_kind(Kind::BFloat16).to_kind(Kind::Float);
            // Ranks 0 and 1 add their share of two passes.
            let expected = shard_of(&(block * 6.0), mesh.shard(), mesh.shards());
            let found = shard.gradient.to_device(Device::Cpu);
            assert_eq!(found, expected, "{case}, gradient of block {index}");
        }
    });
}

/// A pass whose gradients are the weights, once for rank 0 and twice for rank 1.
fn pass(parameters: &mut ShardedParameters, rank: u32, case: &str) {
    for index in 0..NUMELS.len() {
        let next = (index + 1 < NUMELS.len()).then_some(index + 1);
        let found = parameters.weights(index, next).unwrap().to_device(Device::Cpu);
        assert_eq!(found, block(index).to_kind(Kind::BFloat16), "{case}, block {index}");
    }
    for index in (0..NUMELS.len()).rev() {
        let weights = parameters.weights(index, index.checked_sub(1)).unwrap();
        let mut gradient = parameters.gradient(index).unwrap();
        let mut part = weights.to_kind(Kind::Float) * f64::from(rank + 1);
        if gradient.has_values {
            part += &gradient.flat;
        }
        gradient.flat.copy_(&part);
        gradient.has_values = true;
        parameters.add_gradient(index, gradient).unwrap();
    }
    parameters.end_pass().unwrap();
}

#[test]
fn numbers_are_summed_on_the_device_over_shards_and_replicas() {
    // Of the second number, each replica of `Hybrid` has its own sum.
    let cases = [(Sharding::Full, [30.0, 30.0]), (Sharding::Hybrid, [10.0, 20.0])];
    let name = "two_gpus::numbers_are_summed_on_the_device_over_shards_and_replicas";
    on_two(name, &cases, |ranks, sharding, seconds| {
        let own = [f64::from(ranks.rank() + 1), 10.0 * f64::from(ranks.rank() + 1)];
        let numbers = Tensor::from_slice(&own).to_device(GPU);
        ranks.sum_on_device(&numbers).unwrap();
        let sums = Vec::<f64>::try_from(&numbers.to_device(Device::Cpu)).unwrap();
        assert_eq!(sums, [3.0, seconds[ranks.rank() as usize]], "{sharding:?}");
    });
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

/// Elements of a broadcast: more bytes than the buffers of NCCL, which take what a dead peer does
/// not receive.
const BROADCAST: i64 = 1 << 26;

/// Starts the peer of `store`, on GPU 1.
fn peer(store: &Store) -> Child {
    start("two_gpus::as_peer", 1, &[store.port()])
}

/// The peer of the tests below: receives one broadcast, and then waits to be killed.
#[test]
fn as_peer() {
    let Some((_, ports)) = started() else { return };
    let store = Store::connect("127.0.0.1", ports[0], TIMEOUT).unwrap();
    let group = DeviceGroup::join_weight_update(&store, "pair", (1, 2), 0, TIMEOUT).unwrap();
    let received = Tensor::zeros([BROADCAST], (Kind::Float, GPU));
    group.broadcast(&received, 0).unwrap();
    group.finish().unwrap();
    std::thread::sleep(TIMEOUT);
}

/// A sender whose peer was killed after a broadcast, with another broadcast under way.
fn after_the_death_of_a_peer(timeout: Duration) -> (DeviceGroup, Tensor) {
    let store = Store::host("127.0.0.1", 0, TIMEOUT).unwrap();
    let mut peer = peer(&store);
    let group = sender(&store, "pair", timeout).unwrap();
    let content = Tensor::ones([BROADCAST], (Kind::Float, GPU));
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
    let mut again = peer(&store);
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
