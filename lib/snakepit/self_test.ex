defmodule Snakepit.SelfTest do
  @moduledoc false

  # Checks which promises cannot be kept on this machine, and says what to do about it. The facts come from
  # the BEAM itself (`Snakepit.Native.self_test/0`) and from the guardian, which sends its own with its first
  # frame. A finding is a `:refusal` where a promise would be broken silently: then nothing is started. It is
  # a `:warning` where a promise is weaker.

  require Logger

  alias Snakepit.{Error, Native}

  @typedoc "`check` is what was looked at, `text` a sentence about it, `remedy` one about what to do."
  @type finding :: %{
          check: atom(),
          severity: :refusal | :warning,
          text: String.t(),
          remedy: String.t()
        }

  @doc "Returns what this place allows, as facts. Takes a fraction of a millisecond."
  @spec facts() :: map()
  def facts, do: Native.self_test()

  @doc "Returns the findings that follow from the facts."
  @spec findings(map()) :: [finding()]
  def findings(facts \\ facts()) do
    Enum.reject(
      [table(facts), pidfd(facts), lock_limit(facts), hides(facts)],
      &is_nil/1
    )
  end

  @doc "Logs a warning for each promise that is weaker here; raises if a promise cannot be kept."
  @spec run!() :: :ok
  def run! do
    {refusals, warnings} = Enum.split_with(findings(), &(&1.severity == :refusal))
    if refusals != [], do: raise(error(refusals))
    for finding <- warnings, do: Logger.warning("Snakepit: #{sentence(finding)}")
    :ok
  end

  @doc "Returns the error with which a start is refused."
  @spec error([finding(), ...]) :: Error.t()
  def error([first | _] = refusals) do
    detail = Enum.map_join(refusals, " ", &sentence/1)
    %Error{operation: :start, reason: first.check, detail: detail}
  end

  @doc "Returns a finding as a sentence."
  @spec sentence(finding()) :: String.t()
  def sentence(finding), do: "#{finding.text}. #{finding.remedy}."

  @doc "Returns the finding for a guardian that is refused a system call."
  @spec unable(String.t(), atom()) :: finding()
  def unable(call, reason) do
    refusal(
      :guardian,
      "the guardian may not call #{call} (#{Error.posix(reason)}), so Snakepit could leave processes behind",
      "Let the sandbox pass it: the container's seccomp profile, the unit's SystemCallFilter, or the security " <>
        "module's profile for snakepit_guardian"
    )
  end

  @doc "Returns the finding for a guardian that was killed by SIGSYS."
  @spec filtered() :: finding()
  def filtered do
    refusal(
      :guardian,
      "the guardian was killed by SIGSYS: a system call filter forbids a call that it needs",
      "The kernel's log names the call (journalctl -k, 'type=1326 ... syscall='); allow it, or all of " <>
        "@system-service, in the unit's SystemCallFilter or the container's seccomp profile"
    )
  end

  defp table(%{table: :own}), do: nil

  defp table(%{table: {:foreign, there}, os_pid: os_pid}) do
    refusal(
      :process_table,
      "/proc is that of another pid namespace (this BEAM is process #{os_pid} and has the pid #{there} " <>
        "there), so Snakepit would take other processes for its own",
      "Mount this namespace's own: unshare with --mount-proc, bwrap with --proc /proc, or " <>
        "mount -t proc proc /proc"
    )
  end

  defp table(%{table: {:absent, reason}}) do
    refusal(
      :process_table,
      "/proc does not show this BEAM (/proc/self: #{Error.posix(reason)}), so Snakepit could not see what it " <>
        "leaves behind",
      "Mount it where the BEAM runs: mount -t proc proc /proc in a chroot, bwrap with --proc /proc"
    )
  end

  defp pidfd(%{pidfd: nil}), do: nil

  defp pidfd(%{pidfd: {call, :enosys}}) do
    refusal(
      :pidfd,
      "#{call} is missing (enosys), so Snakepit could not signal its processes",
      "It needs Linux 5.10 or later; if the kernel is, let the sandbox (seccomp profile, gVisor) pass " <>
        "pidfd_open and pidfd_send_signal"
    )
  end

  defp pidfd(%{pidfd: {call, reason}}) do
    refusal(
      :pidfd,
      "#{call} is refused (#{Error.posix(reason)}), so Snakepit could not signal its processes",
      "Let the sandbox pass pidfd_open and pidfd_send_signal: the container's seccomp profile (Docker before " <>
        "20.10 forbids both), or the unit's SystemCallFilter"
    )
  end

  defp lock_limit(%{lock_limit: nil}), do: nil

  defp lock_limit(%{lock_limit: limit}) do
    warning(
      :lock_limit,
      "the hard limit of RLIMIT_LOCKS is #{limit}, so a daemon that empties its environment and leaves its " <>
        "session cannot be told from others', and ends with the BEAM instead of with its worker",
      "Leave that limit infinite, it has no effect: no LimitLOCKS=, --ulimit locks= or locks in limits.conf"
    )
  end

  defp hides(%{hides: false}), do: nil

  defp hides(%{hides: true}) do
    warning(
      :hidepid,
      "/proc hides processes that this user may not trace (hidepid), so a later start does not find " <>
        "set-user-id programs and programs with file capabilities that were not recorded",
      "Mount /proc without hidepid (ProtectProc=default), or grant the BEAM its gid= or CAP_SYS_PTRACE, if you " <>
        "run such programs"
    )
  end

  defp refusal(check, text, remedy),
    do: %{check: check, severity: :refusal, text: text, remedy: remedy}

  defp warning(check, text, remedy),
    do: %{check: check, severity: :warning, text: text, remedy: remedy}
end
