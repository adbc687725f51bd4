defmodule Snakepit.Test.LogFile do
  @moduledoc """
  What a second BEAM writes to its log. Its default logger writes to its standard output.
  """

  alias Snakepit.Test.Beam

  @doc "Calls a function in a second BEAM. Returns its value, and what was logged meanwhile."
  def during(beam, module, function, arguments) do
    path = Path.join(Beam.temporary_directory(), "log")
    value = Beam.call(beam, __MODULE__, :write_during, [path, module, function, arguments])
    {value, File.read!(path)}
  end

  @doc "Writes the log of a second BEAM to a file from now on. Returns a function that reads it."
  def open(beam, level \\ :info) do
    path = Path.join(Beam.temporary_directory(), "log")
    :ok = Beam.call(beam, __MODULE__, :add, [path, level])

    fn ->
      :ok = Beam.call(beam, :logger_std_h, :filesync, [:test_file])
      File.read!(path)
    end
  end

  @doc "For the second BEAM."
  def write_during(path, module, function, arguments) do
    :ok = add(path, :info)
    value = apply(module, function, arguments)
    :ok = :logger_std_h.filesync(:test_file)
    :ok = :logger.remove_handler(:test_file)
    value
  end

  @doc "For the second BEAM."
  def add(path, level) do
    # A line for each entry.
    formatter = {:logger_formatter, %{single_line: true}}
    file = String.to_charlist(path)
    config = %{config: %{file: file}, level: level, formatter: formatter}
    :logger.add_handler(:test_file, :logger_std_h, config)
  end
end
