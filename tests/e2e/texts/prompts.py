"""Prompts that several tests share: short and long, plain and chat-like."""

PROMPTS = (
    "The capital of France is",
    "Water boils at",
    "Once upon a time there was a small boat that",
    "def add(a, b):\n    return",
    "In 1969, the first person to walk on the Moon",
    "The three primary colours are",
    "A list of fruits: apple, banana,",
    "My favourite season is autumn because",
    "To make a cup of tea, first",
    "The quick brown fox",
    "Photosynthesis is the process by which",
    "Question: What is 12 plus 30?\nAnswer:",
    "Dear Sir or Madam, I am writing to",
    "The river wandered through the valley, and over many years",
    "import numpy as np\n\nx = np",
    "She opened the letter slowly. Inside, there was",
    "Iron rusts when",
    "The opposite of cold is",
    "Roses are red, violets are",
    "At the end of the long meeting the chairman stood up and said that",
)
