"""Extensions: code of the operator's own, loaded at start and called with the caller's rights."""
