"""Conversations: messages and tools to a prompt, an answer to text, reasoning and tool calls."""
