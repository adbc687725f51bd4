defmodule Snakepit.Ledger.Seal do
  @moduledoc false

  # A term as a binary with a checksum: a damaged file yields the term that was stored, or nothing. Records of
  # workers have a checksum of their own, see `Snakepit.Native.record_seal/1`.

  @digest_bytes 8

  # Every atom that runs record. A term with an atom that this BEAM has not seen yet is not decoded, and
  # where modules are loaded when they are first called, that of a run may come before its module. As they
  # stand here they are known when this module is.
  @vocabulary ~w(
    run guardian grace worker gone current_run
    run_id instance state beam beam_pid place machine namespace node
    started_at changed_at ended_at clean_shutdown terminated_by sequence
    initializing cleaning_stale running shutting_down terminated
    cleanup reboot elsewhere found stopped killed ambiguous
    usage user_us system_us max_rss_kb
    worker_id status reserved active os_pid pgid identity elixir_pid command spawned_at version checksum
    true false nil
  )a

  @doc "Returns the sealed term."
  @spec seal(term()) :: binary()
  def seal(term) do
    content = :erlang.term_to_binary(term)
    digest(content) <> content
  end

  @doc "Returns the term, if it is what was sealed. Makes no atom."
  @spec open(term()) :: {:ok, term()} | :error
  def open(<<digest::binary-size(@digest_bytes), content::binary>>) do
    if digest(content) == digest, do: decode(content), else: :error
  end

  def open(_other), do: :error

  @doc "Returns the atoms that a record may have."
  @spec vocabulary() :: [atom()]
  def vocabulary, do: @vocabulary

  @doc "Returns a term from bytes that something else has checked. Makes no atom."
  @spec decode(binary()) :: {:ok, term()} | :error
  def decode(content) do
    {:ok, :erlang.binary_to_term(content, [:safe])}
  rescue
    ArgumentError -> :error
  end

  defp digest(content), do: :sha256 |> :crypto.hash(content) |> binary_part(0, @digest_bytes)
end
