defmodule Snakepit.Python.Environment.Lock do
  @moduledoc false

  # One at a time, of all BEAMs of this machine. Whoever listens on the socket has the lock. It has a name of Linux's
  # abstract ones, so there is no file that a killed BEAM could leave. Elsewhere only this BEAM is kept from doing it
  # twice at once.

  alias Snakepit.Error

  @pause_ms 100

  @doc "Calls the function when no other does so for the same path; waits so long for that."
  @spec hold(Path.t(), timeout(), (() -> result)) :: result | {:error, Error.t()}
        when result: term()
  def hold(path, timeout, fun) do
    deadline = if timeout == :infinity, do: :infinity, else: now() + timeout

    # Order: here first, so that one process of this BEAM asks the kernel.
    :global.trans({{__MODULE__, path}, self()}, fn -> alone(path, deadline, fun) end, [node()])
  end

  defp alone(path, deadline, fun) do
    case lock(path) do
      {:ok, socket} ->
        try do
          fun.()
        after
          if socket, do: :gen_tcp.close(socket)
        end

      :taken ->
        if now() < deadline do
          receive(do: (:never -> :ok), after: (@pause_ms -> :ok))
          alone(path, deadline, fun)
        else
          detail = "another process still makes the environment #{path}"
          {:error, %Error{operation: :python, reason: :timeout, detail: detail}}
        end
    end
  end

  defp lock(path) do
    if :os.type() == {:unix, :linux} do
      hash = Base.encode16(:crypto.hash(:sha256, path))
      name = <<0, "snakepit-", binary_part(hash, 0, 32)::binary>>

      case :gen_tcp.listen(0, ifaddr: {:local, name}) do
        {:ok, socket} -> {:ok, socket}
        {:error, :eaddrinuse} -> :taken
        # It cannot be locked here; then it is as elsewhere.
        {:error, _reason} -> {:ok, nil}
      end
    else
      {:ok, nil}
    end
  end

  defp now, do: System.monotonic_time(:millisecond)
end
