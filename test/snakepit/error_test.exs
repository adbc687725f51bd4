defmodule Snakepit.ErrorTest do
  use ExUnit.Case, async: true

  alias Snakepit.Error

  doctest Snakepit.Error

  test "a message is a sentence with what happened and the name of the errno" do
    for {error, message} <- [
          {%Error{operation: :spawn, reason: :eagain, step: :fork},
           "spawn failed: fork: resource temporarily unavailable (eagain)"},
          {%Error{operation: :stop, reason: :eperm, os_pid: 7},
           "stop failed (OS process 7): operation not permitted (eperm)"},
          {%Error{operation: :stop, reason: :survivors, os_pids: [7, 8]},
           "stop failed: these processes cannot be ended: [7, 8]"},
          {%Error{operation: :stream, reason: :exit_signal, signal: :sigkill, output: "bye\n"},
           "stream failed: the program was ended by sigkill; its last output:\nbye"},
          {%Error{operation: :start, reason: :already_registered, worker_id: "w"},
           "start failed (worker w): a worker of this id runs already; choose another :id"},
          {%Error{operation: :start, reason: :enomem, worker_id: "w", os_pid: 7},
           "start failed (worker w, OS process 7): not enough memory (enomem)"},
          {%Error{operation: :x, reason: :some_reason}, "x failed: some_reason"}
        ] do
      assert Exception.message(error) == message
    end
  end

  test "every reason of a worker's exit becomes an error that says it" do
    for {reason, pattern} <- [
          {{:exit_status, 3}, "status 3"},
          {{:exit_signal, :sigterm}, "ended by sigterm"},
          {{:shutdown, {:exit_status, 4}}, "status 4"},
          {{:exit_status, 0}, "status 0; a worker's program must stay in the foreground"},
          {{:survivors, [5]}, "cannot be ended: [5]"},
          {:normal, "status 0; a worker's program must stay in the foreground"},
          {:heartbeat_timeout, "no heartbeats"},
          {:guardian_down, "the guardian was lost"},
          {{%RuntimeError{message: "oops"}, []}, "oops"},
          {%Error{operation: :start, reason: :not_ready, detail: "not ready"}, "not ready"}
        ] do
      assert Exception.message(Error.from_exit(reason)) =~ pattern
    end
  end
end
