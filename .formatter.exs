[
  # Of an example.
  locals_without_parens: [live_dashboard: 2],
  inputs: [
    "{mix,.formatter}.exs",
    "{bench,config,lib,test,examples}/**/*.{ex,exs}",
    "script/*.exs"
  ]
]
