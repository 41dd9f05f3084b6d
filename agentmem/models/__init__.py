"""Models that answer and models that embed: local engine, LangChain models, a scripted fake."""
