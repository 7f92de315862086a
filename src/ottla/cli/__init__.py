"""The `ottla` command: one file per command, and what they share.

`main` puts the commands together; `options` holds what many of them take, `output` what they print,
`failure` how they end. Anything heavy is imported inside the command that needs it, so that `ottla --help`
and shell completion answer at once.
"""
