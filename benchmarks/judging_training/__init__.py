"""Losses of our trainer against programs that share nothing with it but torch and transformers.

setting   what all of them train: model, data, order, schedule
plain     a loop by hand
hub       the Hugging Face Trainer, and TRL's SFTTrainer
ours      jobs of zerotools, at several stages and numbers of ranks
"""
