//! The tokenizer of the fuzz targets.

use std::sync::OnceLock;

use rljob_text::TextTokenizer;

use crate::folder::write;

/// A tokenizer of bytes with three special tokens.
pub const TOKENIZER: &[u8] =
    include_bytes!("../../trainer/text/tests/fixtures/tiny-chat/tokenizer.json");

/// Calls with a tokenizer that is opened once.
pub fn tokenizer<T>(call: impl FnOnce(&TextTokenizer) -> T) -> T {
    static OPENED: OnceLock<TextTokenizer> = OnceLock::new();
    call(OPENED.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("no folder: {error}"));
        write(&folder.path().join("tokenizer.json"), TOKENIZER);
        TextTokenizer::open(folder.path())
            .unwrap_or_else(|error| panic!("the tokenizer cannot be opened: {error}"))
    }))
}
