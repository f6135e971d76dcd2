//! Filters of system calls (seccomp): what no program in the sandbox may call, and what a test may
//! not call in addition.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

/// Network, other processes' memory, mounts, namespaces, kernel interfaces, and memory that
/// outlives a process. `socketpair` is allowed: it connects to no other process.
const REJECTED: [i64; 44] = [
    libc::SYS_socket,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_quotactl,
    libc::SYS_shmget,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_mq_open,
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setaffinity,
];
/// Flags of `clone` that create namespaces.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];
/// Signals to other processes, and changes of files, by a test without namespaces.
const REJECTED_ALONE: [i64; 18] = [
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
    libc::SYS_openat2,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_truncate,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
];
/// The same calls of architectures that keep the older ones.
#[cfg(target_arch = "x86_64")]
const REJECTED_ALONE_OLD: [i64; 12] = [
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_creat,
    libc::SYS_mkdir,
    libc::SYS_mknod,
    libc::SYS_symlink,
    libc::SYS_link,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_unlink,
    libc::SYS_rmdir,
    libc::SYS_chmod,
];
#[cfg(not(target_arch = "x86_64"))]
const REJECTED_ALONE_OLD: [i64; 1] = [libc::SYS_renameat];
/// Bit of the system calls of the x32 interface.
const X32: i64 = 1 << 30;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Filters of everything in the sandbox.
pub fn sandbox() -> Result<Vec<BpfProgram>, BackendError> {
    let mut rules: Rules = REJECTED.map(|call| (call, Vec::new())).into();
    let clones = NAMESPACES.map(|flag| masked(0, flag as u64, flag as u64));
    rules.insert(libc::SYS_clone, clones.into_iter().collect::<Result<_, _>>()?);
    // Limits of other processes.
    let other = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![other])?]);
    // Its flags are in memory, which a filter cannot read. Libraries then use clone.
    let unknown = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    Ok(vec![filter(rules, libc::EPERM)?, filter(unknown, libc::ENOSYS)?])
}

/// Filter of a test. Without namespaces (`alone`), it is one process, sends no signals and changes
/// no files.
pub fn test(alone: bool) -> Result<BpfProgram, BackendError> {
    // Memory that the limit of address space does not count.
    let mut rules: Rules = BTreeMap::from([(libc::SYS_memfd_create, Vec::new())]);
    if alone {
        let calls = REJECTED_ALONE.into_iter().chain(REJECTED_ALONE_OLD);
        rules.extend(calls.map(|call| (call, Vec::new())));
        rules.insert(libc::SYS_clone, vec![masked(0, libc::CLONE_THREAD as u64, 0)?]);
        let create = libc::O_CREAT as u64;
        rules.insert(libc::SYS_openat, vec![masked(2, create, create)?, temporary(2)?]);
        #[cfg(target_arch = "x86_64")]
        rules.insert(libc::SYS_open, vec![masked(1, create, create)?, temporary(1)?]);
    }
    filter(rules, libc::EPERM)
}

/// The program as the kernel reads it.
pub fn bytes(program: &BpfProgram) -> Vec<u8> {
    let instruction = |filter: &seccompiler::sock_filter| {
        let mut bytes = filter.code.to_ne_bytes().to_vec();
        bytes.extend([filter.jt, filter.jf]);
        bytes.extend(filter.k.to_ne_bytes());
        bytes
    };
    program.iter().flat_map(instruction).collect()
}

/// Whether an argument has this value in the bits of the mask.
fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompRule, BackendError> {
    let operator = SeccompCmpOp::MaskedEq(mask);
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?;
    SeccompRule::new(vec![condition])
}

/// Whether an argument asks for an unnamed file.
fn temporary(argument: u8) -> Result<SeccompRule, BackendError> {
    let flag = libc::O_TMPFILE as u64;
    masked(argument, flag, flag)
}

fn filter(rules: Rules, errno: i32) -> Result<BpfProgram, BackendError> {
    let with_x32 = |(call, rule): (i64, Vec<SeccompRule>)| {
        let x32 = cfg!(target_arch = "x86_64").then(|| (call | X32, rule.clone()));
        x32.into_iter().chain([(call, rule)])
    };
    let rules = rules.into_iter().flat_map(with_x32).collect();
    let architecture: TargetArch = std::env::consts::ARCH.try_into()?;
    let rejected = SeccompAction::Errno(errno as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, rejected, architecture)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_programs_that_the_kernel_accepts_in_size() {
        let programs = sandbox().unwrap().into_iter().chain([test(true).unwrap()]);
        for program in programs {
            assert!(program.len() < 4096, "{}", program.len());
            assert_eq!(bytes(&program).len(), 8 * program.len());
        }
        assert!(test(false).unwrap().len() < test(true).unwrap().len());
    }
}
