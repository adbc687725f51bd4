defmodule MyApp.Metrics do
  # "render-7f3a9c" and "render-02bd11" are both counted as "render".
  def group(worker_id), do: worker_id |> String.split("-") |> hd()
end
