defmodule Snakepit.Seal do
  @moduledoc false

  # A term as a binary that shows when it was changed: what a damaged file gives back is either the
  # term that was stored or nothing.

  @digest_bytes 8

  @doc "The sealed term."
  @spec seal(term()) :: binary()
  def seal(term) do
    content = :erlang.term_to_binary(term)
    digest(content) <> content
  end

  @doc "The term, if it is what was sealed. Makes no atom."
  @spec open(term()) :: {:ok, term()} | :error
  def open(<<digest::binary-size(@digest_bytes), content::binary>>) do
    if digest(content) == digest, do: decode(content), else: :error
  end

  def open(_other), do: :error

  @doc "A term from bytes that something else has checked. Makes no atom."
  @spec decode(binary()) :: {:ok, term()} | :error
  def decode(content) do
    {:ok, :erlang.binary_to_term(content, [:safe])}
  rescue
    ArgumentError -> :error
  end

  defp digest(content), do: :sha256 |> :crypto.hash(content) |> binary_part(0, @digest_bytes)
end
