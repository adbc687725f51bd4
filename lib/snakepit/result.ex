defmodule Snakepit.Result do
  @moduledoc """
  What `Snakepit.run/3` returns: how the program ended, and what it wrote.

    * `:status` - its exit status, or `nil` if a signal ended it
    * `:signal` - the signal that ended it, such as `:sigkill`, or `nil`
    * `:stdout` - what it wrote, collected by `:into`
    * `:stderr` - the end of what it wrote to standard error, at most `output_tail_bytes` of the
      configuration; all of it with `stderr: :capture`; `""` where it leads elsewhere
    * `:duration_ms` - from the call until its whole tree was gone
    * `:usage` - what the kernel has counted for it and for those of its children that it waited for:
      `:user_us` and `:system_us`, microseconds of CPU time, and `:max_rss_kb`, its largest resident set
  """

  @enforce_keys [:status, :signal, :stdout, :stderr, :duration_ms, :usage]
  defstruct @enforce_keys

  @type t :: %__MODULE__{
          status: non_neg_integer() | nil,
          signal: atom() | pos_integer() | nil,
          stdout: Collectable.t(),
          stderr: binary(),
          duration_ms: non_neg_integer(),
          usage: %{
            user_us: non_neg_integer(),
            system_us: non_neg_integer(),
            max_rss_kb: non_neg_integer()
          }
        }
end
