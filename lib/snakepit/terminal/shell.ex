defmodule Snakepit.Terminal.Shell do
  @moduledoc false

  # Who else in this BEAM reads the person's terminal, and whether that can be stopped for a while.
  #
  # Two who read one terminal each get some of the keys. Since OTP 26 one process reads it for the shell and for
  # `IO.gets/1`, and can be suspended: keys that are typed meanwhile are not for it. When it continues it waits for the
  # next key, on a dirty scheduler. Before that, a driver reads as soon as there is something, and cannot be stopped.

  alias Snakepit.Error

  @reader :user_drv_reader

  @doc """
  Stops whoever else reads the terminal, until the calling process calls `continue/1` or ends.
  """
  @spec suspend() :: {:ok, reader :: pid() | nil} | {:error, Error.t()}
  def suspend do
    cond do
      node(Process.group_leader()) != node() ->
        refuse(
          "the shell runs on another node, #{node(Process.group_leader())}, and so does your terminal"
        )

      not reads_terminal?() ->
        {:ok, nil}

      reader = Process.whereis(@reader) ->
        suspend(reader)

      otp() < 26 ->
        refuse(
          "before OTP 26 the shell of Erlang takes some of the keys, and cannot be stopped. Start the BEAM without it, " <>
            "with its standard input from /dev/null: mix run my_script.exs < /dev/null"
        )

      true ->
        {:ok, nil}
    end
  end

  # Order: asked again after it was suspended, so that it has not begun to read in between.
  defp suspend(reader) do
    if not reads?(reader) and :erlang.suspend_process(reader) and not reads?(reader),
      do: {:ok, reader},
      else: busy()
  rescue
    # It has begun to read in between, and nobody is suspended in there.
    ErlangError -> busy()
  end

  # After it was suspended it takes one key, although nobody wants to read.
  defp reads?(reader) do
    match?(
      {:current_function, {:prim_tty, :read_nif, _arity}},
      Process.info(reader, :current_function)
    )
  end

  defp busy do
    refuse(
      "somebody else in this BEAM waits for a key at the terminal; press one, Return for example, and try again"
    )
  end

  @doc "Lets the others read again."
  @spec continue(pid() | nil) :: true
  def continue(reader), do: reader == nil or :erlang.resume_process(reader)

  # What reads from elsewhere, such as /dev/null, takes no keys. `-noinput` reads nothing at all.
  defp reads_terminal? do
    :init.get_argument(:noinput) == :error and
      match?({:ok, "/dev/" <> name} when name != "null", File.read_link("/proc/self/fd/0"))
  end

  defp otp, do: List.to_integer(:erlang.system_info(:otp_release))

  defp refuse(detail), do: {:error, %Error{operation: :attach, reason: :ebusy, detail: detail}}
end
