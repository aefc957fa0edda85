"""Objectives of training, one per file: functions of query and passage vectors."""
