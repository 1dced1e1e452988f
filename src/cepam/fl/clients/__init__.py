"""Clients: what each samples, trains, clips, encodes and sends."""
