defmodule Snakepit.Dashboard.Place do
  @moduledoc false

  # What this place allows, one line for each thing that was looked at. This is all that the dashboard knows of it.

  alias Snakepit.SelfTest

  @checks [
    {:process_table, "Process table", "/proc is that of this pid namespace and shows this BEAM"},
    {:pidfd, "Signals", "processes are signalled through pidfds, never by a bare pid"},
    {:lock_limit, "Marks on processes",
     "daemons that leave their session are known as this run's"},
    {:hidepid, "Visibility", "/proc hides no process from this user"}
  ]

  @doc "Returns the findings: `:check`, `:title`, `:status` (`:ok`, `:warning` or `:refusal`), `:text` and `:remedy`."
  @spec report() :: [map()]
  def report do
    facts = SelfTest.facts()
    findings = Map.new(SelfTest.findings(facts), &{&1.check, &1})
    for({check, title, fine} <- @checks, do: line(check, title, fine, findings)) ++ more(facts)
  end

  defp line(check, title, fine, findings) do
    case findings do
      %{^check => finding} ->
        %{
          check: check,
          title: title,
          status: finding.severity,
          text: finding.text,
          remedy: finding.remedy
        }

      _fine ->
        %{check: check, title: title, status: :ok, text: fine, remedy: nil}
    end
  end

  # Facts that no promise depends on, as there is another way in each case.
  defp more(facts) do
    [
      fact(
        :handles,
        "Handles of processes",
        facts.handles,
        "a pid that was used again is told by the kernel's own handle (Linux 6.14)",
        "the kernel is older than 6.14, so identities are checked by start time, user and marker"
      ),
      fact(
        :boot,
        "Identity of this boot",
        facts.boot,
        "a run of an earlier boot is known as such, and nothing of it is signalled",
        "the boot cannot be read, so recorded processes are ended only where the kernel confirms them"
      )
    ]
  end

  defp fact(check, title, good?, fine, otherwise) do
    status = if good?, do: :ok, else: :info
    text = if good?, do: fine, else: otherwise
    %{check: check, title: title, status: status, text: text, remedy: nil}
  end
end
