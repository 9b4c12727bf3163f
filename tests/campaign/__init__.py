"""The robustness campaign: optsched under abuse (docs/robustness.md).

`python -m campaign --minutes 20` from the folder `tests`, or `make campaign MINUTES=20`; the short
form is `test_campaign.py`.
"""
