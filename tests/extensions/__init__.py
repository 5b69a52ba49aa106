"""Extensions: code of the operator's own."""
