"""Compare language models: folders of Hugging Face models, GGUF files, servers, and references on disk."""
