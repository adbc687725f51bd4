defmodule Snakepit.Python.Protocol do
  @moduledoc false

  # What the BEAM and a Python worker say to each other, version 1. The kinds of packets are described in
  # `priv/python/snakepit_bridge/channel.py`, which is the other side.
  #
  # A request is one of `Snakepit.Worker.request/3`: the worker puts a tag of seven bytes before it, and knows its answer
  # by the same. So the calls of one worker may be answered in any order, a late answer is dropped, and one that never
  # comes ends the worker. All that is no request has a tag that the worker never uses: what comes with it is passed to
  # `Snakepit.Python.Side`, in the worker, and what goes out with it is written by `control/2`.

  alias Snakepit.{Error, Worker}
  alias Snakepit.Python.Codec

  @version 1
  @tag_bytes 7
  @control <<0xFFFFFFFFFFFFFF::56>>

  @typedoc "A session as a request names it: its key, whether it may be made again, and of what."
  @type session :: [term()] | nil

  @doc "How many bytes a tag has."
  def tag_bytes, do: @tag_bytes

  @doc "What a packet begins with that answers nothing."
  def control, do: @control

  @doc "The first request to a worker."
  def init(code, options), do: Codec.encode("I", [@version, code, options], true)

  @doc "A call of a function."
  def call(target, args, kwargs, session, inline? \\ false),
    do: Codec.encode("C", [target, args, kwargs, session], inline?)

  @doc "As `call/5`, for what is iterated over: `id` is that of the stream, and `credit` how many items may come."
  def stream(id, credit, target, args, kwargs, session),
    do: Codec.encode(<<"S", id::64, credit::32>>, [target, args, kwargs, session], true)

  @doc "Code to be run."
  def eval(code, variables, session, inline? \\ false),
    do: Codec.encode("E", [code, variables, session], inline?)

  @doc "Tells a worker that nobody waits for the answer with this tag."
  def cancel(worker, tag) do
    with :ok <- control(worker, <<"x", tag::size(@tag_bytes)-unit(8)>>),
         do: Worker.signal(worker, :sigurg)
  end

  @doc "Lets a stream send so many items more."
  def credit(worker, id, count), do: control(worker, <<"n", id::64, count::32>>)

  @doc "Tells a worker that nobody wants more items of a stream."
  def close(worker, id) do
    with :ok <- control(worker, <<"z", id::64>>), do: Worker.signal(worker, :sigurg)
  end

  @doc "The result of a callback; what cannot be carried is a failure of it."
  def returned(worker, id, result) do
    case Codec.encode("r" <> id, result, true) do
      {:ok, packet, []} -> control(worker, packet)
      {:error, error} -> failed(worker, id, "its result: " <> Error.cause(error))
    end
  end

  @doc "A callback has failed."
  def failed(worker, id, text) do
    {:ok, packet, []} = Codec.encode("f" <> id, text, true)
    control(worker, packet)
  end

  @doc "The owner of a session is gone."
  def drop(worker, key) do
    {:ok, packet, []} = Codec.encode("d", key, true)
    control(worker, packet)
  end

  @doc "Memory files of the worker have been mapped."
  def mapped(_worker, []), do: :ok

  def mapped(worker, fds) do
    {:ok, packet, []} = Codec.encode("m", fds, true)
    control(worker, packet)
  end

  # A worker that does not read is busy, and reads this before the next request.
  defp control(worker, packet), do: Worker.write(worker, @control <> packet, 5_000)

  @typedoc "What an answer says, and the descriptors of the worker that were mapped for it."
  @type answer ::
          {:ok, term(), [non_neg_integer()]}
          | {:raised, Snakepit.Python.Error.t()}
          | {:unable, :memory | :session, String.t()}
          | {:error, Error.t()}

  @doc "Reads an answer."
  @spec answer(binary()) :: answer()
  def answer(<<"R", message::binary>>), do: Codec.decode(message)

  def answer(<<"X", message::binary>>) do
    case Codec.decode(message) do
      {:ok, [type, text, trace], []} when is_binary(type) and is_binary(text) ->
        {:raised, %Snakepit.Python.Error{type: type, message: text, traceback: trace}}

      other ->
        unreadable(other)
    end
  end

  def answer(<<"U", message::binary>>) do
    case Codec.decode(message) do
      {:ok, ["memory", text], []} -> {:unable, :memory, text}
      {:ok, ["session", text], []} -> {:unable, :session, text}
      other -> unreadable(other)
    end
  end

  def answer(_packet), do: unreadable(nil)

  defp unreadable({:error, error}), do: {:error, error}

  defp unreadable(_other) do
    detail = "the worker's answer cannot be read: it is none of snakepit_bridge's"
    {:error, %Error{operation: :decode, reason: :malformed, detail: detail}}
  end
end
