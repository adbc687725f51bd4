defmodule Snakepit.GRPC.Address do
  @moduledoc false

  # The addresses of gRPC servers on this machine, as gRPC writes them: `127.0.0.1:50051`, `unix:/run/server.sock`, and
  # `unix-abstract:name` for a socket that has no file.

  @type t :: String.t()

  @doc """
  Returns what `:gen_tcp.connect/3` takes.

      iex> Snakepit.GRPC.Address.parse("127.0.0.1:50051")
      {:ok, {127, 0, 0, 1}, 50051}
      iex> Snakepit.GRPC.Address.parse("unix:/run/server.sock")
      {:ok, {:local, "/run/server.sock"}, 0}
      iex> Snakepit.GRPC.Address.parse("[::1]:50051")
      {:ok, {0, 0, 0, 0, 0, 0, 0, 1}, 50051}
      iex> Snakepit.GRPC.Address.parse("nowhere")
      {:error, :einval}

  """
  @spec parse(t()) :: {:ok, term(), :inet.port_number()} | {:error, :einval}
  def parse("unix-abstract:" <> name) when name != "", do: {:ok, {:local, <<0, name::binary>>}, 0}
  def parse("unix://" <> path) when path != "", do: {:ok, {:local, path}, 0}
  def parse("unix:" <> path) when path != "", do: {:ok, {:local, path}, 0}

  def parse(address) do
    with [_all, host, port] <- Regex.run(~r/\A(.+):(\d{1,5})\z/s, address),
         port when port in 1..65_535 <- String.to_integer(port),
         do: {:ok, host(host), port},
         else: (_malformed -> {:error, :einval})
  end

  defp host(host) do
    name = host |> String.trim_leading("[") |> String.trim_trailing("]") |> String.to_charlist()

    case :inet.parse_address(name) do
      {:ok, ip} -> ip
      {:error, :einval} -> name
    end
  end

  @doc "Returns whether it is a local socket."
  @spec local?(t()) :: boolean()
  def local?(address), do: String.starts_with?(address, ["unix:", "unix-abstract:"])

  @doc "Returns what a request says that it was sent to."
  @spec authority(t()) :: String.t()
  def authority(address), do: if(local?(address), do: "localhost", else: address)
end
