defmodule Snakepit.Doctor do
  @moduledoc """
  What this place allows, what each missing thing costs, and how to get it.

  The same as `snakepit_guardian doctor` and `mix snakepit.doctor`, as data and for the BEAM that asks:

      iex> report = Snakepit.Doctor.report()
      iex> %{level: :fine, found: "Linux " <> _release} = Enum.find(report, & &1.check == "kernel")
      iex> Enum.filter(report, & &1.level == :broken)
      []

  Snakepit needs not be started for it.
  """

  alias Snakepit.{CommandLine, Native}

  @typedoc """
  What was found of one thing. With the level `:broken` Snakepit does not start, with `:weaker` a promise is weaker,
  `:note` is good to know, and `:fine` has neither `cost` nor `remedy`.
  """
  @type finding :: %{
          check: String.t(),
          level: :fine | :note | :weaker | :broken,
          found: String.t(),
          cost: String.t(),
          remedy: String.t()
        }

  @doc "Returns what was found, in the order in which people should read it."
  @spec report() :: [finding()]
  def report, do: CommandLine.data_dir() |> List.wrap() |> Native.doctor_report()
end
