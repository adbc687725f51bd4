defmodule MyApp.PromEx.Snakepit do
  use Snakepit.PromEx
end

defmodule MyApp.PromEx do
  use PromEx, otp_app: :my_app

  @impl true
  def plugins, do: [PromEx.Plugins.Beam, MyApp.PromEx.Snakepit]
end
