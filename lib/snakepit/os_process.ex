defmodule Snakepit.OSProcess do
  @moduledoc """
  One OS process, known by more than its pid.

  A pid is reused; an identity is not. A signal sent through an `OSProcess` reaches that process or
  none.

  ## Examples

      iex> {:ok, beam} = Snakepit.OSProcess.lookup(String.to_integer(System.pid()))
      iex> Snakepit.OSProcess.alive?(beam)
      true

  The identity is a binary that may be stored and used by another BEAM later: after the process has
  ended it matches nothing, also when something else has its pid.
  """

  alias Snakepit.{Error, Native}

  @enforce_keys [:os_pid, :identity]
  defstruct [:os_pid, :identity]

  @typedoc "A process and what the kernel knows it by. Treat the identity as opaque."
  @type t :: %__MODULE__{os_pid: pos_integer(), identity: binary()}

  @typedoc """
  What the process table says of a process: its parent, group and session (0 if outside this pid
  namespace), its real user, and its arguments, which are bytes and need not be UTF-8.
  """
  @type info :: %{
          os_pid: pos_integer(),
          parent: non_neg_integer(),
          pgid: non_neg_integer(),
          session: non_neg_integer(),
          state: :alive | :stopped | :uninterruptible,
          uid: non_neg_integer() | nil,
          start: non_neg_integer(),
          arguments: [binary()]
        }

  @doc """
  Identifies the process that has this pid now.

  A zombie has ended, so it is not found.

      iex> {:error, error} = Snakepit.OSProcess.lookup(0)
      iex> error.reason
      :refused

  """
  @spec lookup(integer()) :: {:ok, t()} | {:error, Error.t()}
  def lookup(os_pid) when is_integer(os_pid) do
    case Native.process_lookup(os_pid) do
      {:ok, {os_pid, identity}} -> {:ok, %__MODULE__{os_pid: os_pid, identity: identity}}
      {:error, reason} -> {:error, Error.from_native(:lookup, reason)}
    end
  end

  def lookup(other), do: raise(ArgumentError, "expected an OS pid, got: #{inspect(other)}")

  @doc """
  Returns whether this very process can still run. That is `false` for a zombie, and for a process that cannot be told
  apart from a successor with the same pid.
  """
  @spec alive?(t()) :: boolean()
  def alive?(%__MODULE__{identity: identity}), do: Native.process_alive(identity) == {:ok, true}

  @doc """
  Returns what the process table says of the process.

      iex> {:ok, beam} = Snakepit.OSProcess.lookup(String.to_integer(System.pid()))
      iex> {:ok, info} = Snakepit.OSProcess.info(beam)
      iex> info.state
      :alive

  """
  @spec info(t()) :: {:ok, info()} | {:error, Error.t()}
  def info(%__MODULE__{identity: identity}) do
    with {:error, reason} <- Native.process_info(identity) do
      {:error, Error.from_native(:info, reason)}
    end
  end
end
