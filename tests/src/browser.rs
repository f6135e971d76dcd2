//! A headless Chromium, controlled by its DevTools protocol over two pipes: messages of JSON, each
//! ended by a zero byte.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::run;

/// Time limit of an answer and of a condition on a loaded machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Interval between two evaluations of a condition.
const POLL: Duration = Duration::from_millis(50);
/// Opens the pipes as the file descriptors that Chromium expects.
const START: &str = r#"exec "$0" "$@" 3<"$TO" 4>"$FROM""#;

/// A browser with one tab. It exits when the value is dropped.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    session: String,
    next: u64,
    problems: Vec<String>,
    _folder: TempDir,
}

impl Browser {
    /// Starts a browser with a window of this size.
    pub fn start(width: u32, height: u32) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let pipes = ["to", "from"].map(|name| folder.path().join(name));
        run(Command::new("mkfifo").args(&pipes))?;
        let [to, from] = &pipes;
        let child = Command::new("sh")
            .args(["-c", START, "chromium", "--headless", "--no-sandbox", "--disable-gpu"])
            .args(["--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
            .arg(format!("--window-size={width},{height}"))
            .envs([("TO", to), ("FROM", from)])
            .stderr(Stdio::from(File::create(folder.path().join("log"))?))
            .spawn()
            .context("failed to start sh")?;
        // In the order in which the shell opens them.
        let (to, from) = (File::options().write(true).open(to)?, File::open(from)?);
        let from = messages(from);
        let (session, problems) = (String::new(), Vec::new());
        let mut browser = Self { child, to, from, session, next: 0, problems, _folder: folder };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}))?;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", &attach).context("no tab")?;
        attached["sessionId"].as_str().unwrap_or_default().clone_into(&mut browser.session);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}))?;
        }
        Ok(browser)
    }

    /// Opens a page and waits until it is loaded.
    pub fn open(&mut self, url: &str) -> Result<()> {
        let opened = self.call("Page.navigate", &json!({"url": url}))?;
        if let Some(error) = opened["errorText"].as_str() {
            bail!("failed to open {url}: {error}");
        }
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")
    }

    /// The value of a JavaScript expression; a promise is awaited.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let parameters =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let evaluated = self.call("Runtime.evaluate", &parameters)?;
        if let Some(exception) = evaluated.get("exceptionDetails") {
            bail!("{expression}: {exception}");
        }
        Ok(evaluated["result"]["value"].clone())
    }

    /// Waits until an expression is true.
    pub fn wait_for(&mut self, expression: &str) -> Result<()> {
        let start = Instant::now();
        while self.evaluate(expression)? != json!(true) {
            if start.elapsed() >= LIMIT {
                let text = self.evaluate("document.body.innerText")?;
                bail!("waiting for {expression}: not within {LIMIT:?}; the page shows {text}");
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Sets the preferred color scheme: `light` or `dark`.
    pub fn prefer(&mut self, scheme: &str) -> Result<()> {
        self.emulate("prefers-color-scheme", scheme)
    }

    /// Sets a media feature, and no other.
    pub fn emulate(&mut self, feature: &str, value: &str) -> Result<()> {
        let features = json!([{"name": feature, "value": value}]);
        self.call("Emulation.setEmulatedMedia", &json!({"features": features})).map(drop)
    }

    /// Sets the size of the page in CSS pixels.
    pub fn resize(&mut self, width: u32, height: u32) -> Result<()> {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", &size).map(drop)
    }

    /// Presses and releases a key, by its name and the code of its character, if it has one.
    pub fn press(&mut self, key: &str) -> Result<()> {
        let (code, text) = match key {
            "Tab" => (9, None),
            "Enter" => (13, Some("\r")),
            " " => (32, Some(" ")),
            "End" => (35, None),
            "Home" => (36, None),
            "ArrowLeft" => (37, None),
            "ArrowRight" => (39, None),
            _ => bail!("no code of the key {key}"),
        };
        let event = |kind: &str| {
            let text = text.filter(|_| kind == "keyDown").unwrap_or_default();
            json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code,
                "text": text})
        };
        self.call("Input.dispatchKeyEvent", &event("keyDown"))?;
        self.call("Input.dispatchKeyEvent", &event("keyUp")).map(drop)
    }

    /// Role and name of the elements in the tree that screen readers get.
    pub fn accessible(&mut self) -> Result<Vec<(String, String)>> {
        let tree = self.call("Accessibility.getFullAXTree", &json!({}))?;
        let nodes = tree["nodes"].as_array().context("the answer has no nodes")?;
        let text =
            |node: &Value, key: &str| node[key]["value"].as_str().unwrap_or_default().to_owned();
        let shown = nodes.iter().filter(|node| node["ignored"] != true);
        Ok(shown.map(|node| (text(node, "role"), text(node, "name"))).collect())
    }

    /// Writes a picture of the whole page.
    pub fn screenshot(&mut self, path: &Path) -> Result<()> {
        let parameters = json!({"captureBeyondViewport": true, "format": "png"});
        let picture = self.call("Page.captureScreenshot", &parameters)?;
        let encoded = picture["data"].as_str().unwrap_or_default().to_owned();
        let encoded_path = path.with_extension("base64");
        fs::write(&encoded_path, encoded)?;
        let decoded = Command::new("base64").arg("--decode").arg(&encoded_path).output()?;
        fs::remove_file(&encoded_path)?;
        Ok(fs::write(path, decoded.stdout)?)
    }

    /// Bytes that the page's JavaScript, elements and data use, after a garbage collection.
    pub fn memory(&mut self) -> Result<u64> {
        self.call("HeapProfiler.collectGarbage", &json!({}))?;
        let usage = self.call("Runtime.getHeapUsage", &json!({}))?;
        let parts = ["usedSize", "embedderHeapUsedSize", "backingStorageSize"];
        let bytes = parts.map(|part| usage[part].as_f64().unwrap_or_default() as u64);
        Ok(bytes.iter().sum())
    }

    /// Exceptions and errors of pages so far, among them violations of a security policy.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    fn call(&mut self, method: &str, parameters: &Value) -> Result<Value> {
        self.next += 1;
        let mut message = json!({"id": self.next, "method": method, "params": parameters});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).context("the browser has exited")?;
        loop {
            let received = self.from.recv_timeout(LIMIT);
            let received = received.with_context(|| format!("no answer to {method}"))?;
            if received["id"] == json!(self.next) {
                if let Some(error) = received.get("error") {
                    bail!("{method}: {error}");
                }
                return Ok(received["result"].clone());
            }
            self.note(&received);
        }
    }

    fn note(&mut self, event: &Value) {
        let is_problem = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Log.entryAdded") => event["params"]["entry"]["level"] == "error",
            _ => false,
        };
        if is_problem {
            self.problems.push(event["params"].to_string());
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(POLL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Messages of the browser, read by a thread that ends with it.
fn messages(from: File) -> Receiver<Value> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for message in BufReader::new(from).split(0).map_while(Result::ok) {
            let Ok(message) = serde_json::from_slice(&message) else { continue };
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    receiver
}
