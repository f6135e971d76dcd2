//! Plan of a sandbox: what the node allows and what a program needs → limits, rules and mounts.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::message::{Limits, Settings};
use crate::tool::ToolSettings;

/// Folders in which programs of the sandbox are searched.
pub const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Files and folders that programs, their libraries and compilers read.
const READABLE: [&str; 8] = [
    "/usr",
    "/bin",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/dev/urandom",
    "/dev/zero",
];
const OPEN_FILES: u64 = 64;
/// Address space of a compiler in MiB. It exceeds that of most programs.
const COMPILER_MIB: u64 = 2048;
/// Processes of a compiler: driver, compiler, assembler, linker and its wrapper.
const COMPILER_PROCESSES: u64 = 8;
/// Most files and folders in a private scratch folder.
const INODES: u32 = 4096;
/// Processes and threads of a tool.
const TOOL_PROCESSES: u64 = 64;
/// All files of a tool in MiB.
const TOOL_FILES: u32 = 64;
const MIB: u64 = 1 << 20;

/// What a process does to itself before it executes the program.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Whether the program gets its own PID, user, mount, network, IPC and host name namespaces.
    pub namespaces: bool,
    /// Options of the file system in memory that is mounted at `scratch`, with namespaces.
    pub mount_options: String,
    /// The only folder in which files may be created.
    pub scratch: PathBuf,
    /// Working folder, if it is not `scratch`.
    pub folder: Option<PathBuf>,
    /// Files and folders that may be read and executed.
    pub readable: Vec<PathBuf>,
    /// Bytes of address space of a process, and of memory of all processes together.
    pub address_space: u64,
    /// Largest file in bytes.
    pub file_size: u64,
    pub open_files: u64,
    /// Processes and threads of the user in its namespace.
    pub processes: Option<u64>,
    /// Whether the filter of tests applies from the start.
    pub filters_as_tests: bool,
}

impl Plan {
    /// For programs with tests.
    pub fn for_tests(settings: &Settings, namespaces: bool, scratch: PathBuf) -> Self {
        let Limits { memory_mib, processes, files_mib, .. } = settings.limits;
        let (compiler_mib, compiler_processes) =
            if settings.compiles { (COMPILER_MIB, COMPILER_PROCESSES) } else { (0, 0) };
        // The driver is a process too.
        let processes = u64::from(processes).max(compiler_processes).saturating_add(1);
        Self::new(
            namespaces,
            scratch,
            u64::from(memory_mib).max(compiler_mib),
            Some(processes),
            files_mib,
        )
    }

    /// For a function of the user in `folder`: the program may also read the folder.
    pub fn for_function(
        limits: &FunctionLimits,
        namespaces: bool,
        scratch: PathBuf,
        folder: PathBuf,
    ) -> Self {
        let processes = Some(limits.processes.into());
        let mut plan =
            Self::new(namespaces, scratch, limits.memory_mib.into(), processes, limits.files_mib);
        plan.readable.push(folder);
        plan
    }

    /// For a tool. Models write its arguments, and the code that it may execute.
    pub fn for_tool(settings: &ToolSettings, namespaces: bool, scratch: PathBuf) -> Self {
        let memory_mib = settings.memory_mib.into();
        let own = Self::new(namespaces, scratch, memory_mib, Some(TOOL_PROCESSES), TOOL_FILES);
        let mut plan = Self { filters_as_tests: true, folder: settings.folder.clone(), ..own };
        plan.readable.extend(settings.folder.clone());
        plan
    }

    fn new(
        namespaces: bool,
        scratch: PathBuf,
        memory_mib: u64,
        processes: Option<u64>,
        files_mib: u32,
    ) -> Self {
        Self {
            namespaces,
            mount_options: format!("size={files_mib}m,nr_inodes={INODES},mode=0700"),
            scratch,
            folder: None,
            readable: READABLE.map(PathBuf::from).to_vec(),
            address_space: memory_mib.saturating_mul(MIB),
            file_size: u64::from(files_mib).saturating_mul(MIB),
            open_files: OPEN_FILES,
            // In the namespace of the node it would count all processes of the user.
            processes: processes.filter(|_| namespaces),
            filters_as_tests: false,
        }
    }

    /// Environment of the program. Hashes are not randomized, so that a verdict is reproducible.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let scratch = self.scratch.to_string_lossy().into_owned();
        let folder = self.folder.as_ref().map(|path| path.to_string_lossy().into_owned());
        let imports = folder.map(|folder| ("PYTHONPATH", folder));
        let fixed = [
            ("PATH", SEARCH_PATH.to_owned()),
            ("HOME", scratch.clone()),
            ("TMPDIR", scratch),
            ("LANG", "C.UTF-8".to_owned()),
            ("OMP_NUM_THREADS", "1".to_owned()),
            ("OPENBLAS_NUM_THREADS", "1".to_owned()),
            ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
            ("PYTHONHASHSEED", "0".to_owned()),
            ("PYTHONNOUSERSITE", "1".to_owned()),
            ("PYTHONSAFEPATH", "1".to_owned()),
            ("PYTHONUTF8", "1".to_owned()),
        ];
        fixed.into_iter().chain(imports).collect()
    }
}

/// Limits of a function of the user.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionLimits {
    /// Address space of a process in MiB, and memory of all processes together.
    pub memory_mib: u32,
    /// Processes and threads.
    pub processes: u32,
    /// All files in MiB.
    pub files_mib: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(compiles: bool) -> Settings {
        let limits = Limits {
            compile_seconds: 10,
            test_seconds: 5,
            total_seconds: 60,
            memory_mib: 512,
            processes: 1,
            output_kib: 64,
            files_mib: 16,
        };
        Settings { limits, compiles, stops_at_failure: true }
    }

    #[test]
    fn a_plan_limits_processes_and_files_in_namespaces() {
        let plan = Plan::for_tests(&settings(false), true, "/scratch".into());
        assert_eq!(plan.mount_options, "size=16m,nr_inodes=4096,mode=0700");
        assert_eq!((plan.processes, plan.address_space), (Some(2), 512 << 20));
        let compiling = Plan::for_tests(&settings(true), true, "/scratch".into());
        assert_eq!((compiling.processes, compiling.address_space), (Some(9), 2048 << 20));
    }

    #[test]
    fn without_namespaces_processes_of_others_are_not_counted() {
        let plan = Plan::for_tests(&settings(true), false, "/scratch".into());
        assert_eq!((plan.processes, plan.scratch), (None, PathBuf::from("/scratch")));
    }

    #[test]
    fn a_tool_starts_in_its_folder_under_the_filter_of_tests() {
        let settings = ToolSettings {
            command: vec!["./tool".to_owned()],
            folder: Some("/tools".into()),
            timeout_seconds: 5,
            memory_mib: 128,
            output_kib: 64,
        };
        let plan = Plan::for_tool(&settings, false, "/scratch".into());
        assert_eq!((plan.readable.last(), &plan.folder), (plan.folder.as_ref(), &settings.folder));
        assert_eq!((plan.address_space, plan.filters_as_tests), (128 << 20, true));
    }

    #[test]
    fn a_function_reads_its_folder() {
        let limits = FunctionLimits { memory_mib: 1024, processes: 4, files_mib: 16 };
        let plan = Plan::for_function(&limits, true, "/scratch".into(), "/rewards".into());
        assert_eq!(plan.readable.last(), Some(&PathBuf::from("/rewards")));
        assert_eq!(plan.processes, Some(4));
    }
}
