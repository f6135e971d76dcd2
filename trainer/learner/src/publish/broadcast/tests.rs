//! Broadcasts to engines, which are threads with the other end of the process groups.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rljob_collective::{Group, Store};
use rljob_protocol::learner::Transfer;
use tch::{Device, Kind, Tensor};

use super::{Ends, Offer, Parts, Place, send, send_all};
use crate::publish::tests::{source, staged};

const TIMEOUT: Duration = Duration::from_secs(60);

fn ends() -> Ends {
    Ends {
        store: Arc::new(Store::host("127.0.0.1", 0, TIMEOUT).unwrap()),
        place: Place { address: "127.0.0.1".to_owned(), device: Device::Cpu },
        groups: Arc::default(),
    }
}

fn transfer(name: &str) -> Transfer {
    Transfer {
        engine: name.to_owned(),
        sender: 0,
        group: name.to_owned(),
        world_size: 2,
        kept: false,
    }
}

/// An engine in process group `name` that receives tensors of these numbers of bytes.
fn engine(port: u16, name: &'static str, sizes: Vec<i64>) -> JoinHandle<Vec<Tensor>> {
    std::thread::spawn(move || {
        let store = Store::connect("127.0.0.1", port, TIMEOUT).unwrap();
        // A sender with withdrawn weights may leave before this end has joined.
        let joined = Group::join_weight_update(&store, name, 1, 2, "127.0.0.1", TIMEOUT);
        let Ok(group) = joined else { return Vec::new() };
        let receive = |size: i64| {
            let bytes = Tensor::zeros([size], (Kind::Uint8, Device::Cpu));
            group.broadcast(&bytes, 0).map(|()| bytes)
        };
        // A sender that leaves ends the group.
        sizes.into_iter().map_while(|size| receive(size).ok()).collect()
    })
}

fn bytes(tensor: &Tensor) -> Tensor {
    tensor.contiguous().view([-1]).view_dtype(Kind::Uint8)
}

#[test]
fn engines_in_separate_groups_receive_every_part_in_order() {
    for parts in [Parts::Buckets, Parts::Tensors] {
        let (_source, layout, blocks) = source();
        let staged = staged(&layout, &blocks, Kind::BFloat16);
        let expected: Vec<Tensor> = parts.contents(&staged).iter().map(bytes).collect();
        let sizes: Vec<i64> = expected.iter().map(|part| part.numel() as i64).collect();
        let counts = parts.counts(&staged);
        assert_eq!(counts, if parts == Parts::Buckets { vec![expected_tensors()] } else { vec![] });
        let ends = ends();
        let names = ["step-1.attempt-0.engine-0", "step-1.attempt-0.engine-1"];
        let engines = names.map(|name| engine(ends.store.port(), name, sizes.clone()));
        let transfers = names.map(transfer);
        send_all(&ends, &transfers, &Offer::new(staged, parts, &transfers));
        for engine in engines {
            assert_eq!(engine.join().unwrap(), expected, "{parts:?}");
        }
    }
}

/// Number of tensors of the model.
fn expected_tensors() -> u32 {
    let (_source, layout, blocks) = source();
    staged(&layout, &blocks, Kind::BFloat16).tensors().len() as u32
}

#[test]
fn withdrawn_weights_and_those_of_a_superseded_transfer_are_not_sent() {
    let (_source, layout, blocks) = source();
    let late = transfer("late");
    let offered = || {
        let staged = staged(&layout, &blocks, Kind::BFloat16);
        Offer::new(staged, Parts::Buckets, std::slice::from_ref(&late))
    };
    let (withdrawn, superseded) = (offered(), offered());
    withdrawn.withdraw();
    superseded.give_up("another");
    superseded.give_up("late");
    for offer in [withdrawn, superseded] {
        let ends = ends();
        let engine = engine(ends.store.port(), "late", vec![4]);
        assert!(send(&ends, &late, &offer).unwrap().is_none());
        assert_eq!(engine.join().unwrap(), Vec::<Tensor>::new());
    }
}

#[test]
fn a_later_broadcast_uses_the_kept_group_and_a_failure_ends_it() {
    let (_source, layout, blocks) = source();
    let first = transfer("kept");
    let staged = staged(&layout, &blocks, Kind::BFloat16);
    let offer = Offer::new(staged, Parts::Buckets, std::slice::from_ref(&first));
    let content = bytes(&Parts::Buckets.contents(&offer.take().unwrap())[0]);
    let ends = ends();
    let sizes = vec![content.numel() as i64; 2];
    let engine = engine(ends.store.port(), "kept", sizes);
    let later = Transfer { kept: true, ..first.clone() };
    for transfer in [&first, &later] {
        assert!(send(&ends, transfer, &offer).unwrap().is_some());
    }
    assert_eq!(engine.join().unwrap(), [content.shallow_clone(), content]);
    assert!(send(&ends, &later, &offer).is_err(), "the engine has exited");
    let error = send(&ends, &later, &offer).unwrap_err();
    assert_eq!(error.message, "this process has left it after a failure");
}
