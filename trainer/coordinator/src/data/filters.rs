//! Filters of rows by length and pass rate.

use rljob_crds::data::PassRateFilter;

use crate::data::dropped::FilterReason;
use crate::data::rows::Row;

/// Limits of the rows that are kept.
#[derive(Clone, Copy, Default)]
pub struct Limits<'a> {
    pub min_prompt_tokens: Option<u32>,
    pub max_prompt_tokens: Option<u32>,
    /// Prompt and given completion together.
    pub max_tokens: Option<u32>,
    pub pass_rate: Option<&'a PassRateFilter>,
}

impl Limits<'_> {
    /// Why a row is dropped.
    pub fn reason(&self, row: &Row) -> Option<FilterReason> {
        let tokens = row.filtered_tokens();
        if let Some(limit) = self.max_prompt_tokens.filter(|limit| tokens > *limit as usize) {
            return Some(FilterReason::Long { tokens, limit });
        }
        let all = row.prompt_tokens.saturating_add(row.completion_tokens);
        if let Some(limit) = self.max_tokens.filter(|limit| all > *limit as usize) {
            return Some(FilterReason::LongTogether { tokens: all, limit });
        }
        if let Some(limit) = self.min_prompt_tokens.filter(|limit| tokens < *limit as usize) {
            return Some(FilterReason::Short { tokens, limit });
        }
        let (filter, rate) = (self.pass_rate?, row.pass_rate?);
        let is_within = (filter.min..=filter.max).contains(&rate);
        (!is_within).then_some(FilterReason::PassRate { rate, min: filter.min, max: filter.max })
    }
}
