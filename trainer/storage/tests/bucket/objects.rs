//! Objects under failures of the server and the connection.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rljob_crds::BucketConfig;
use rljob_storage::{Bucket, Folder, MAX_MANIFEST, RunStore};
use rljob_tests::S3;
use rljob_tests::link::{Fault, Link};
use rljob_tests::s3::{ACCESS_KEY, BUCKET, SECRET_KEY};

const PREFIX: &str = "team/lab/job";
/// Three parts; the last one is short.
const LARGE: usize = (2 << 24) + 12345;

/// Opens the test's prefix with keys from a folder, as in a pod.
fn open(endpoint: String, keys: &Path) -> Bucket {
    fs::write(keys.join("AWS_ACCESS_KEY_ID"), ACCESS_KEY).unwrap();
    fs::write(keys.join("AWS_SECRET_ACCESS_KEY"), format!("{SECRET_KEY}\n")).unwrap();
    Bucket::open(&config(endpoint, keys)).unwrap()
}

fn config(endpoint: String, keys: &Path) -> BucketConfig {
    let (bucket, prefix, region) = (BUCKET.to_owned(), PREFIX.to_owned(), "us-east-1".to_owned());
    BucketConfig {
        bucket,
        prefix,
        endpoint: Some(endpoint),
        region,
        credentials: Some(keys.to_owned()),
    }
}

/// Non-repeating bytes.
fn bytes(length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|index| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

fn large_file(folder: &Path) -> (std::path::PathBuf, Vec<u8>) {
    let (path, content) = (folder.join("large"), bytes(LARGE));
    fs::write(&path, &content).unwrap();
    (path, content)
}

/// A sparse file of sixteen parts, large enough to inject faults during its upload.
fn larger_file(folder: &Path) -> (std::path::PathBuf, Vec<u8>) {
    let (path, mut content) = large_file(folder);
    content.resize(1 << 28, 0);
    fs::File::options().write(true).open(&path).unwrap().set_len(1 << 28).unwrap();
    (path, content)
}

fn complete(name: &str, complete: bool) -> Folder {
    Folder { name: name.to_owned(), complete }
}

#[test]
fn objects_are_written_found_measured_and_removed_with_their_folder() {
    let (s3, scratch) = (S3::start().unwrap(), tempfile::tempdir().unwrap());
    let bucket = open(s3.endpoint(), scratch.path());
    let run_store = RunStore::Bucket(bucket.clone());
    assert_eq!(
        (
            run_store.read("a/x", 1000).unwrap(),
            run_store.size("a/x").unwrap(),
            run_store.folders("a", "marker").unwrap()
        ),
        (None, None, vec![])
    );
    for name in ["c/one/x", "c/one/marker", "c/two/x", "c/twofold/marker", "other/marker"] {
        bucket.put(name, name.into()).unwrap();
    }
    assert_eq!(run_store.read("c/one/x", 7).unwrap().unwrap(), b"c/one/x");
    let error = run_store.read("c/one/x", 6).unwrap_err().to_string();
    assert!(error.ends_with("c/one/x` is larger than 6 bytes"), "{error}");
    assert_eq!(run_store.size("c/one/x").unwrap(), Some(7));
    let folders = || run_store.folders("c", "marker").unwrap();
    assert_eq!(
        folders(),
        [complete("one", true), complete("two", false), complete("twofold", true)]
    );
    run_store.remove_folder("c/two", "marker").unwrap();
    run_store.remove_folder("c/one", "marker").unwrap();
    assert_eq!(folders(), [complete("twofold", true)]);
    assert_eq!(
        s3.keys(""),
        [format!("{PREFIX}/c/twofold/marker"), format!("{PREFIX}/other/marker")]
    );
}

#[test]
fn a_large_file_is_uploaded_in_parts_and_read_back_unchanged() {
    static ANSWERS: AtomicUsize = AtomicUsize::new(0);
    let (s3, scratch) = (S3::start().unwrap(), tempfile::tempdir().unwrap());
    let bucket = open(s3.endpoint(), scratch.path())
        .on_response(|| _ = ANSWERS.fetch_add(1, Ordering::Relaxed));
    let (path, content) = large_file(scratch.path());
    bucket.upload(&path, "large").unwrap();
    let of_upload = ANSWERS.swap(0, Ordering::Relaxed);
    assert!(bucket.read("large", u64::MAX).unwrap().unwrap() == content);
    let parts = content.len().div_ceil(16 << 20);
    assert!(
        of_upload > parts && ANSWERS.load(Ordering::Relaxed) > parts,
        "every part and every range is reported"
    );
    assert_eq!(
        RunStore::Bucket(bucket).sha256("large").unwrap(),
        RunStore::Folder(scratch.path().to_owned()).sha256("large").unwrap()
    );
    assert_eq!((s3.keys(""), s3.unfinished_parts()), (vec![format!("{PREFIX}/large")], 0));
}

#[test]
fn one_of_two_writers_creates_an_object_and_may_repeat_the_request() {
    let (s3, scratch) = (S3::start().unwrap(), tempfile::tempdir().unwrap());
    let bucket = open(s3.endpoint(), scratch.path());
    let write = |bytes: &str| bucket.put_if_absent("log/1", bytes.as_bytes()).unwrap();
    assert_eq!(["mine", "other", "mine"].map(write), [true, false, true]);
    assert_eq!(bucket.read("log/1", MAX_MANIFEST).unwrap().unwrap(), b"mine");
    assert_eq!([0, 1].map(|_| bucket.rejects_overwrites("probe").unwrap()), [true, true]);
}

#[test]
fn a_rejected_put_of_a_missing_object_is_not_a_conflict() {
    let (mut s3, scratch) = (S3::start().unwrap(), tempfile::tempdir().unwrap());
    s3.half_make(&format!("{PREFIX}/log/1")).unwrap();
    let bucket = open(s3.endpoint(), scratch.path()).with_retry_limit(Duration::from_secs(1));
    let error = bucket.put_if_absent("log/1", b"mine").unwrap_err();
    let cause =
        std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source())
            .last()
            .unwrap()
            .to_string();
    assert!(cause.contains("rejected the object as existing"), "{cause}");
    s3.restart().unwrap();
    assert!(bucket.put_if_absent("log/1", b"mine").unwrap());
}

/// Every kind of request of an upload meets a fault at least once.
#[test]
fn an_upload_over_a_faulty_connection_completes() {
    let (s3, scratch) = (S3::start().unwrap(), tempfile::tempdir().unwrap());
    let link = Link::to(s3.port()).unwrap();
    let bucket = open(link.endpoint(), scratch.path());
    let (path, content) = large_file(scratch.path());
    let faults =
        [Fault::SlowDown, Fault::CutAnswer(0), Fault::CutRequest(5000), Fault::CutAnswer(20)];
    link.fail(faults.into_iter().cycle().take(12));
    bucket.upload(&path, "large").unwrap();
    assert_eq!((s3.keys(""), s3.unfinished_parts()), (vec![format!("{PREFIX}/large")], 0));
    link.fail([
        Fault::CutAnswer(1 << 20),
        Fault::SlowDown,
        Fault::CutAnswer(3000),
        Fault::Dribble(1 << 18),
    ]);
    assert!(bucket.read("large", u64::MAX).unwrap().unwrap() == content);
    link.fail([Fault::CutAnswer(0)]);
    assert!(bucket.put_if_absent("new", b"x").unwrap(), "an answer that was lost is found out");
    assert!(link.faults_injected() >= 13, "{}", link.faults_injected());
}

#[test]
fn an_upload_completes_after_a_kill_and_restart_of_the_server() {
    let (mut s3, scratch) = (S3::start().unwrap(), tempfile::tempdir().unwrap());
    let bucket = open(s3.endpoint(), scratch.path());
    let (path, content) = larger_file(scratch.path());
    let (uploading, file) = (bucket.clone(), path.clone());
    let upload = std::thread::spawn(move || uploading.upload(&file, "large"));
    rljob_tests::process::wait_until("a part", Duration::from_secs(30), || {
        Ok(s3.unfinished_parts() > 0)
    })
    .unwrap();
    s3.kill().unwrap();
    assert!(
        !s3.keys("").contains(&format!("{PREFIX}/large")),
        "it is not there before it is whole"
    );
    s3.restart().unwrap();
    upload.join().unwrap().unwrap();
    assert!(bucket.read("large", u64::MAX).unwrap().unwrap() == content);
}

#[test]
fn a_failed_upload_creates_no_object_and_is_removed_with_its_folder() {
    let (mut s3, scratch) = (S3::start().unwrap(), tempfile::tempdir().unwrap());
    let bucket = open(s3.endpoint(), scratch.path()).with_retry_limit(Duration::from_millis(300));
    let (path, _) = larger_file(scratch.path());
    let (uploading, file) = (bucket.clone(), path.clone());
    let upload = std::thread::spawn(move || uploading.upload(&file, "c/one/large"));
    rljob_tests::process::wait_until("a part", Duration::from_secs(30), || {
        Ok(s3.unfinished_parts() > 0)
    })
    .unwrap();
    s3.kill().unwrap();
    let error = upload.join().unwrap().unwrap_err().to_string();
    assert_eq!(error, format!("failed to upload `s3://{BUCKET}/{PREFIX}/c/one/large`"));
    s3.restart().unwrap();
    assert_eq!(s3.keys(""), [format!("{PREFIX}/c/one/large.upload")]);
    assert!(s3.unfinished_parts() > 0);
    bucket.remove_folder("c/one", "marker").unwrap();
    assert_eq!((s3.keys(""), s3.unfinished_parts()), (vec![], 0));
}

#[test]
fn wrong_keys_and_a_missing_bucket_fail_immediately_without_naming_secrets() {
    let (s3, scratch) = (S3::start().unwrap(), tempfile::tempdir().unwrap());
    let bucket = open(s3.endpoint(), scratch.path());
    let words = |bucket: &Bucket| {
        let error = bucket.put("x", vec![]).unwrap_err();
        format!("{error}: {}", std::error::Error::source(&error).unwrap())
    };
    fs::write(scratch.path().join("AWS_SECRET_ACCESS_KEY"), "wrong-and-secret").unwrap();
    let refused = words(&bucket);
    assert!(
        refused.contains("SignatureDoesNotMatch") && !refused.contains("wrong-and-secret"),
        "{refused}"
    );
    fs::remove_file(scratch.path().join("AWS_SECRET_ACCESS_KEY")).unwrap();
    let missing = words(&bucket.clone().with_retry_limit(Duration::ZERO));
    assert!(
        missing.ends_with(
            "the Secret of storage.s3.credentialsSecretRef has no key `AWS_SECRET_ACCESS_KEY`"
        ),
        "{missing}"
    );
    fs::write(scratch.path().join("AWS_SECRET_ACCESS_KEY"), SECRET_KEY).unwrap();
    bucket.put("x", vec![]).unwrap();
    let elsewhere =
        RunStore::at(Path::new("s3://elsewhere/x"), Some(&config(s3.endpoint(), scratch.path())))
            .unwrap();
    let none = elsewhere.folders("c", "marker").unwrap_err();
    assert!(
        std::error::Error::source(&none).unwrap().to_string().contains("NoSuchBucket"),
        "{none}"
    );
}
