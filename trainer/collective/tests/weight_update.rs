//! Weight-update process group with SGLang's `init_custom_process_group` in Python as the peer.

use std::process::{Command, Stdio};
use std::time::Duration;

use rljob_collective::{Group, Store};
use rljob_tests::files::{python, required};
use tch::{Kind, Tensor};

/// Joins as SGLang's server does and prints the tensors that it receives. Arguments: port, name of
/// the process group. Ends without the interpreter's cleanup, which sometimes aborts while a thread
/// of torch runs.
const PEER: &str = r#"
import os, sys, torch
from sglang.srt.utils import init_custom_process_group
group = init_custom_process_group(
    backend="gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}",
    world_size=2, rank=1, group_name=sys.argv[2])
for tensor in (torch.empty(3), torch.empty(2, 2, dtype=torch.bfloat16)):
    torch.distributed.broadcast(tensor, src=0, group=group)
    print(tensor.flatten().tolist(), flush=True)
os._exit(0)
"#;

#[test]
fn sglang_joins_a_process_group_and_receives_broadcasts() {
    let Some(python) = required(python()) else { return };
    let timeout = Duration::from_secs(300);
    let store = Store::host("127.0.0.1", 0, timeout).unwrap();
    let arguments = ["-c", PEER, &store.port().to_string(), "weights-step-3"];
    let peer = Command::new(python)
        .args(arguments)
        .env("OMP_NUM_THREADS", "1")
        .env("CUDA_VISIBLE_DEVICES", "")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let group =
        Group::join_weight_update(&store, "weights-step-3", 0, 2, "127.0.0.1", timeout).unwrap();
    group.broadcast(&Tensor::from_slice(&[1.0_f32, 2.0, 3.5]), 0).unwrap();
    group
        .broadcast(
            &Tensor::from_slice(&[0.5_f32, -1.0, 2.0, 256.0]).view([2, 2]).to_kind(Kind::BFloat16),
            0,
        )
        .unwrap();
    let output = peer.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = printed.lines().rev().take(2).collect();
    assert_eq!(lines, ["[0.5, -1.0, 2.0, 256.0]", "[1.0, 2.0, 3.5]"]);
}
