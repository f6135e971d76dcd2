//! Broadcasts to engines, which are threads with the other end of the process groups.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rljob_collective::{Group, Store};
use rljob_protocol::learner::Transfer;
use tch::{Device, Kind, Tensor};

use super::{Offer, Parts, Place, send, send_all};
use crate::publish::tests::{source, staged};

const TIMEOUT: Duration = Duration::from_secs(60);

fn place() -> Place {
    Place { address: "127.0.0.1".to_owned(), device: Device::Cpu }
}

fn store() -> Arc<Store> {
    Arc::new(Store::host("127.0.0.1", 0, TIMEOUT).unwrap())
}

fn transfer(name: &str) -> Transfer {
    Transfer { engine: name.to_owned(), sender: 0, group: name.to_owned(), world_size: 2 }
}

/// An engine in process group `name` that receives tensors of these numbers of bytes.
fn engine(port: u16, name: &'static str, sizes: Vec<i64>) -> JoinHandle<Vec<Tensor>> {
    std::thread::spawn(move || {
        let store = Store::connect("127.0.0.1", port, TIMEOUT).unwrap();
        let group = Group::join_weight_update(&store, name, 1, 2, "127.0.0.1", TIMEOUT).unwrap();
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
        let store = store();
        let names = ["step-1.attempt-0.engine-0", "step-1.attempt-0.engine-1"];
        let engines = names.map(|name| engine(store.port(), name, sizes.clone()));
        send_all(&store, &place(), &names.map(transfer), &Offer::new(staged, parts));
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
fn withdrawn_weights_are_not_sent() {
    let (_source, layout, blocks) = source();
    let offer = Offer::new(staged(&layout, &blocks, Kind::BFloat16), Parts::Buckets);
    offer.withdraw();
    let store = store();
    let engine = engine(store.port(), "late", vec![4]);
    assert!(send(&store, &place(), &transfer("late"), &offer).unwrap().is_none());
    assert_eq!(engine.join().unwrap(), Vec::<Tensor>::new());
}
