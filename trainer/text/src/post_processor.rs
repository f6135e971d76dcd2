//! Special tokens that a tokenizer adds to a text, and the bounds of its regular expressions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenizers::processors::template::{Template, TemplateProcessing};
use tokenizers::{Error, Tokenizer};

use crate::folder::{AddedTokens, SpecialTokens};

/// Text that no tokenizer drops.
const PROBE: &str = "a";

/// Replaces the post-processor by one that adds the tokens of the tokenizer's class, as
/// transformers does. A token that the tokenizer does not have is not added.
pub fn replace(
    tokenizer: &mut Tokenizer,
    added: AddedTokens,
    special: &SpecialTokens,
) -> Result<(), Error> {
    let token = |is_added: bool, name: &str| {
        let text = special.get(name).filter(|_| is_added)?;
        Some((text.clone(), tokenizer.token_to_id(text)?))
    };
    let (bos, eos) = (token(added.bos, "bos_token"), token(added.eos, "eos_token"));
    let piece = |token: &Option<(String, u32)>| token.as_ref().map(|(text, _)| format!("{text}:0"));
    let pieces: Vec<String> =
        [piece(&bos), Some("$A:0".to_owned()), piece(&eos)].into_iter().flatten().collect();
    let tokens: Vec<(String, u32)> = [bos, eos].into_iter().flatten().collect();
    let processor = TemplateProcessing::builder()
        .single(Template::try_from(pieces)?)
        .special_tokens(tokens)
        .build()?;
    tokenizer.with_post_processor(Some(processor));
    Ok(())
}

/// Tokens that the tokenizer adds before a text.
pub fn prefix(tokenizer: &Tokenizer) -> Result<Vec<i64>, Error> {
    let whole = tokenizer.encode(PROBE, true)?;
    let added = whole.get_special_tokens_mask().iter().take_while(|mask| **mask == 1).count();
    Ok(whole.get_ids().iter().take(added).map(|id| i64::from(*id)).collect())
}

/// Runs a function of the tokenizer. Its regular expression engine panics when a match needs more
/// than ten million steps; the message of a panic is the error.
pub fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("the tokenizer panicked").to_owned()
    })
}
