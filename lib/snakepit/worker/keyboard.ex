defmodule Snakepit.Worker.Keyboard do
  @moduledoc false

  # What is typed at a worker's terminal, as far as the end of input depends on it.
  #
  # A terminal has no end of input. Its end-of-file character makes what was typed so far available, and a program that
  # gets nothing takes that for the end. So in the middle of a line it takes two of them.

  alias Snakepit.{Native, Pipe}

  defstruct line_start?: true

  @type t :: %__MODULE__{line_start?: boolean()}

  # Newline, return, and the usual characters for end of file, interrupt, quit and suspend, which throw a line away.
  @ends_line [?\n, ?\r, 3, 4, 26, 28]

  @doc "Notes what was typed."
  @spec typed(t(), binary()) :: t()
  def typed(keyboard, ""), do: keyboard
  def typed(keyboard, data), do: %{keyboard | line_start?: :binary.last(data) in @ends_line}

  @doc "Returns what to type at a terminal so that its program takes it for the end of its input."
  @spec end_of_file(t(), Pipe.t()) :: {:ok, binary()} | {:error, :closed}
  def end_of_file(keyboard, terminal) do
    case Native.terminal_modes(terminal) do
      {:ok, modes} -> {:ok, characters(modes, keyboard)}
      {:error, _gone} -> {:error, :closed}
    end
  end

  # It is switched off.
  defp characters(%{eof: 0}, _keyboard), do: ""
  defp characters(%{canonical: true, eof: eof}, %{line_start?: false}), do: <<eof, eof>>
  # A program that edits lines by itself knows what it means, too.
  defp characters(%{eof: eof}, _keyboard), do: <<eof>>
end
