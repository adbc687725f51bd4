defmodule Snakepit.HostileFramesTest do
  use ExUnit.Case, async: false

  import Snakepit.Test.Eventually

  alias Snakepit.{Command, Error, Guardian, Native, Stdio}
  alias Snakepit.Test.{BareGuardian, Family, ProcScan}

  @moduletag timeout: 120_000

  @visitor Path.expand("../fixtures/connects_to_the_listener.py", __DIR__)

  setup do
    # A port whose guardian has ended may be written to: that must not end the test.
    Process.flag(:trap_exit, true)
    bystanders = Family.bystanders()
    {:ok, child} = Guardian.spawn(Command.new!(cmd: ["sleep", "600"]))
    :ok = Guardian.release(child)

    on_exit(fn -> Guardian.stop_all(timeout: 100) end)
    %{bystanders: [child.os_pid | bystanders]}
  end

  defp assert_unharmed(%{bystanders: bystanders}) do
    assert Enum.all?(bystanders, &ProcScan.running?/1)
    # What a test ran itself may take a moment to end.
    eventually(fn -> match?({:ok, %{children: 1}}, Guardian.info()) end)
  end

  # It says why and ends by itself, not by a signal: a panic or an abort would be one, or 101.
  defp assert_refused(guardian, reason) do
    {events, status} = BareGuardian.events_until_end(guardian)
    assert [text] = for({:refused, text} <- events, do: text)
    assert text =~ reason
    assert status == 0
  end

  describe "before the greeting" do
    test "what is no greeting is refused, with the reason", context do
      for {bytes, reason} <- [
            {<<0xFFFFFFFF::32>>, "longer than any message"},
            {<<0x01000001::32>>, "longer than any message"},
            {"GET / HTTP/1.1\r\n\r\n", "longer than any message"},
            {<<0::32>>, "not a message"},
            {BareGuardian.frame("garbage"), "not a message"},
            {BareGuardian.frame(String.duplicate(<<0x91>>, 100_000)), "not a message"},
            {BareGuardian.frame(<<0xDD, 0xFFFFFFFF::32>>), "not a message"},
            {BareGuardian.frame(Native.wire_encode(:info)), "not a greeting"},
            {BareGuardian.frame(Native.wire_encode({:stop_all, 0, true})), "not a greeting"},
            {BareGuardian.frame(Native.wire_encode({:release, 1})), "not a greeting"}
          ] do
        guardian = BareGuardian.start()
        BareGuardian.write(guardian, bytes)
        assert_refused(guardian, reason)
      end

      assert_unharmed(context)
    end

    test "another version is refused, whatever it is", context do
      for version <- [0, 100, 127] do
        guardian = BareGuardian.start()
        # A map of one, the name, an array, and in it the version comes first.
        <<head::binary-size(8), _version, rest::binary>> = BareGuardian.hello(guardian)
        <<0x81, 0xA5, "Hello", _array>> = head
        BareGuardian.tell(guardian, <<head::binary, version, rest::binary>>)
        assert_refused(guardian, "version #{version}")
      end

      assert_unharmed(context)
    end

    test "a greeting from nobody is refused", context do
      for changes <- [%{beam_pid: 0}, %{beam_pid: -1}, %{run_id: ""}, %{run_id: "UPPER!!"}] do
        guardian = BareGuardian.start()
        BareGuardian.tell(guardian, BareGuardian.hello(guardian, changes))
        assert_refused(guardian, "names no run or no BEAM")
      end

      assert_unharmed(context)
    end

    test "half a greeting is waited for, and its sender's death ends the wait", context do
      guardian = BareGuardian.start()
      whole = BareGuardian.frame(BareGuardian.hello(guardian))

      for length <- [0, 1, 3, 4, 5, byte_size(whole) - 1] do
        guardian = BareGuardian.start()
        BareGuardian.write(guardian, binary_part(whole, 0, length))
        BareGuardian.abandon(guardian)
      end

      # Byte by byte it is a greeting like any other.
      for <<byte <- whole>>, do: BareGuardian.write(guardian, <<byte>>)

      assert {{:welcome, _version, _pid, _identity, _socket}, guardian} =
               BareGuardian.event(guardian, :welcome)

      BareGuardian.abandon(guardian)
      assert_unharmed(context)
    end
  end

  describe "with a family running" do
    test "a broken frame is the end of it, and of nobody else", context do
      for {bytes, reason} <- [
            {<<0xFFFFFFFF::32>>, "longer than any message"},
            {<<0::32>>, "not a message"},
            {BareGuardian.frame("garbage"), "not a message"},
            {BareGuardian.frame(Native.wire_encode(:info) <> <<0>>), "not a message"}
          ] do
        token = Family.token()
        guardian = BareGuardian.start()
        {guardian, _child} = BareGuardian.run(guardian, ["sh", "-c", Family.script(token)])
        Family.await(token)
        BareGuardian.write(guardian, bytes)
        assert_refused(guardian, reason)
        assert Family.members(token) == []
        assert BareGuardian.obituary?(guardian)
      end

      assert_unharmed(context)
    end

    test "a frame that is too long is left out, and what follows it is obeyed", context do
      token = Family.token()
      {guardian, child} = BareGuardian.run(BareGuardian.start(), ["sleep", token])
      BareGuardian.write(guardian, BareGuardian.frame(:binary.copy("x", 17 * 1024 * 1024)))
      BareGuardian.tell(guardian, :info)
      assert {{:info, %{children: 1}}, guardian} = BareGuardian.event(guardian, :info)
      assert ProcScan.running?(child)
      BareGuardian.abandon(guardian)
      assert_unharmed(context)
    end

    test "who does not wait to be released is not: neither the running nor the ended", context do
      token = Family.token()
      {guardian, child} = BareGuardian.run(BareGuardian.start(), ["sleep", token])
      # It forks the next one when it has the time.
      {second, guardian} = {2, await_second(guardian)}
      # The one that runs, one that nobody has given anything to run, and one that is being ended.
      for request <- [{:release, 1}, {:release, second}], do: BareGuardian.tell(guardian, request)
      ended = BareGuardian.frame(Native.wire_encode({:stop, second, :sigkill, 0}))
      released = BareGuardian.frame(Native.wire_encode({:release, second}))
      BareGuardian.write(guardian, ended <> released)
      assert {{:failed, ^second, :fork, :esrch}, guardian} = BareGuardian.event(guardian, :failed)

      BareGuardian.tell(guardian, :info)
      assert {{:info, %{children: 1}}, guardian} = BareGuardian.event(guardian, :info)
      assert Family.members(token) == [child]
      BareGuardian.abandon(guardian)
      assert Family.members(token) == []
      assert_unharmed(context)
    end

    defp await_second(guardian) do
      BareGuardian.tell(guardian, :info)

      case BareGuardian.event(guardian, :info) do
        {{:info, %{ahead: 0}}, guardian} -> await_second(guardian)
        {{:info, %{ahead: _some}}, guardian} -> guardian
      end
    end

    test "messages about children that there are not change nothing", context do
      token = Family.token()
      {guardian, child} = BareGuardian.run(BareGuardian.start(), ["sleep", token])

      for id <- [0, 2, 99, 0xFFFFFFFFFFFFFFFF] do
        for request <- [
              {:release, id},
              {:stop, id, :sigkill, 0},
              {:signal, id, :sigkill, :tree},
              {:tail, id}
            ],
            # The one that waits at the gate is number 2.
            not (id == 2 and elem(request, 0) in [:stop, :release]) do
          BareGuardian.tell(guardian, request)
        end

        BareGuardian.tell(guardian, BareGuardian.spawn_message(guardian, 1, ["false"]))
        BareGuardian.tell(guardian, BareGuardian.hello(guardian))
        BareGuardian.tell(guardian, :info)
        assert {{:info, %{children: 1}}, _} = BareGuardian.event(guardian, :info)
      end

      assert Family.members(token) == [child]
      BareGuardian.abandon(guardian)
      assert Family.members(token) == []
      assert_unharmed(context)
    end

    @rounds 200
    @tag :long
    test "#{@rounds} rounds of random bytes end it in order each time", context do
      seed = ExUnit.configuration()[:seed]
      :rand.seed(:exsss, {seed, 1, 2})

      for round <- 1..@rounds do
        token = Family.token()
        {guardian, child} = BareGuardian.run(BareGuardian.start(), ["sleep", token])
        bytes = hostile_bytes(rem(round, 4), guardian)
        message = "seed #{seed}, round #{round}: #{inspect(bytes, limit: :infinity)}"

        if BareGuardian.incomplete?(bytes) do
          BareGuardian.write(guardian, bytes)
          BareGuardian.abandon(guardian)
        else
          # Whatever was a message by chance is obeyed; what follows cannot be one. In one write: a
          # second one might find nobody, and close the port before it has been read.
          BareGuardian.write(guardian, bytes <> <<0xFFFFFFFF::32>>)
          {events, status} = BareGuardian.events_until_end(guardian)
          assert status == 0, message
          assert Enum.any?(events, &match?({:refused, _}, &1)), message
        end

        refute ProcScan.running?(child), message
        assert Family.members(token) == [], message
        assert BareGuardian.obituary?(guardian), message
      end

      assert_unharmed(context)
    end
  end

  # Anything at all.
  defp hostile_bytes(0, _guardian), do: :rand.bytes(:rand.uniform(64))
  # A frame of anything.
  defp hostile_bytes(1, _guardian), do: BareGuardian.frame(:rand.bytes(:rand.uniform(64)))

  # A message with a few bits flipped, which may well be another message.
  defp hostile_bytes(2, guardian) do
    message = Enum.random(messages(guardian))

    1..:rand.uniform(3)
    |> Enum.reduce(message, fn _, bytes ->
      at = :rand.uniform(byte_size(bytes)) - 1
      before = binary_part(bytes, 0, at)
      <<byte, rest::binary>> = binary_part(bytes, at, byte_size(bytes) - at)
      <<before::binary, Bitwise.bxor(byte, Bitwise.bsl(1, :rand.uniform(8) - 1)), rest::binary>>
    end)
    |> BareGuardian.frame()
  end

  # A message cut short, with anything behind it.
  defp hostile_bytes(3, guardian) do
    message = Enum.random(messages(guardian))
    part = binary_part(message, 0, :rand.uniform(byte_size(message)) - 1)
    BareGuardian.frame(part <> :rand.bytes(:rand.uniform(16)))
  end

  # Not `:fork`: a flipped bit there is an order for millions of children.
  defp messages(guardian) do
    spawn = BareGuardian.spawn_message(guardian, 2, ["true"], rlimits: [nofile: 100], nice: 1)
    requests = [:info, {:release, 2}, {:stop, 1, :sigterm, 10}, {:signal, 1, :sigcont, :group}]
    [spawn, spawn, BareGuardian.hello(guardian)] ++ Enum.map(requests, &Native.wire_encode/1)
  end

  describe "at the listener" do
    setup do
      %{address: Guardian.Server.listener(Snakepit.Run.current!())}
    end

    defp visit(address) do
      {:ok, socket} = :gen_tcp.connect({:local, address}, 0, [:binary, active: false])
      socket
    end

    defp pipe(token) do
      {:ok, child} = Guardian.spawn(Command.new!(cmd: ["echo", "hello"], stdio: {:pipe, token}))
      Guardian.release(child)
    end

    # Whatever happened there, a connection made as it should be still works.
    defp assert_listener_works do
      {:ok, socket, token} = Guardian.connect()
      assert :ok = pipe(token)
      assert {:ok, "hello\n"} = :gen_tcp.recv(socket, 0, 5_000)
    end

    test "bytes that are no token lead nowhere", %{address: address} = context do
      :rand.seed(:exsss, {ExUnit.configuration()[:seed], 3, 4})

      for length <- [0, 1, 15, 17, 100, 65_536], _ <- 1..5 do
        socket = visit(address)
        bytes = :rand.bytes(length)
        # A visitor may be shown out before it has said everything.
        :gen_tcp.send(socket, bytes)
        token = binary_part(bytes <> <<0::128>>, 0, 16)

        if length < 16,
          do: assert({:error, %Error{step: :stdio, reason: :enotconn}} = pipe(token))

        :gen_tcp.close(socket)
      end

      assert_listener_works()
      assert_unharmed(context)
    end

    test "a token is good for one connection, and only the right one does", context do
      {:ok, socket, token} = Guardian.connect()
      <<first, rest::binary>> = token
      wrong = <<Bitwise.bxor(first, 1), rest::binary>>

      for guess <- [wrong, binary_part(token, 0, 15), token <> <<0>>, <<0::128>>] do
        assert {:error, %Error{step: :stdio, reason: :enotconn}} = pipe(guess)
      end

      assert :ok = pipe(token)
      assert {:ok, "hello\n"} = :gen_tcp.recv(socket, 0, 5_000)
      assert {:error, %Error{step: :stdio, reason: :enotconn}} = pipe(token)
      assert_unharmed(context)
    end

    test "another process is shown out, though it has the token", %{address: address} = context do
      token = :crypto.strong_rand_bytes(16)
      # It ends with its standard input; until then it holds its connection and the token.
      python = System.find_executable("python3")
      arguments = [@visitor, address, Base.encode16(token)]
      visitor = Port.open({:spawn_executable, python}, [:binary, line: 100, args: arguments])
      assert_receive {^visitor, {:data, {:eol, "shown out"}}}, 10_000
      assert {:error, %Error{step: :stdio, reason: :enotconn}} = pipe(token)
      Port.close(visitor)
      assert_listener_works()
      assert_unharmed(context)
    end

    test "silent visitors do not keep others out", %{address: address} = context do
      silent = for _ <- 1..200, do: visit(address)
      assert_listener_works()
      Enum.each(silent, &:gen_tcp.close/1)
      assert_listener_works()
      assert_unharmed(context)
    end

    test "300 connections at once all arrive", context do
      1..300
      |> Task.async_stream(fn _ -> assert_listener_works() end,
        max_concurrency: 300,
        timeout: 30_000
      )
      |> Enum.each(fn result -> assert {:ok, _} = result end)

      assert_unharmed(context)
    end

    test "connections that nobody claims do not pile up", context do
      guardian = Guardian.os_pid()
      open = fn -> length(File.ls!("/proc/#{guardian}/fd")) end
      # Before and among those that leave are some that stay.
      stay = fn -> for _ <- 1..30, do: Guardian.connect() end
      before = open.()
      staying = stay.()

      for _ <- 1..100 do
        {:ok, socket, _token} = Guardian.connect()
        :gen_tcp.close(socket)
      end

      staying = staying ++ stay.()
      for _ <- 1..100, do: assert_listener_works()
      eventually(fn -> open.() < before + 80 end)

      for {:ok, socket, token} <- staying do
        assert :ok = pipe(token)
        assert {:ok, "hello\n"} = :gen_tcp.recv(socket, 0, 5_000)
      end

      eventually(fn -> open.() < before + 20 end)
      assert_unharmed(context)
    end

    test "pipes that no program got do not pile up, and others stay", context do
      guardian = Guardian.os_pid()
      open = fn -> length(File.ls!("/proc/#{guardian}/fd")) end
      wanted = %Stdio{input: :pipe, output: :pipe, error: :pipe}
      {:ok, staying, stdio} = Guardian.open_streams(wanted)
      before = open.()

      for _ <- 1..100 do
        {:ok, ends, _stdio} = Guardian.open_streams(wanted)
        Stdio.close(ends)
      end

      # Those that are left are checked as others come.
      eventually(fn ->
        assert {"", 0} = Snakepit.cmd("true", [])
        open.() < before + 20
      end)

      command = %{Command.new!(cmd: ["echo", "hello"]) | stdio: stdio}
      {:ok, child} = Guardian.spawn(command)
      assert :ok = Guardian.release(child)
      assert Snakepit.Pipe.read(staying.output, 5_000) == {:ok, "hello\n"}
      Stdio.close(staying)
      assert_unharmed(context)
    end
  end
end
