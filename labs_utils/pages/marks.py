"""The MIME types by which a page, and a grader, know a question and its answer among a notebook's outputs."""

QUESTION = "application/vnd.llm-labs.prediction+json"
ANSWER = "application/vnd.llm-labs.answer+json"
