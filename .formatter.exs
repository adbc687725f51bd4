[
  inputs: [
    "{mix,.formatter}.exs",
    "{bench,config,lib,test,examples}/**/*.{ex,exs}",
    "script/*.exs"
  ]
]
