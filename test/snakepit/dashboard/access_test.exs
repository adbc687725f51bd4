defmodule Snakepit.Dashboard.AccessTest do
  use ExUnit.Case, async: true

  alias Snakepit.Dashboard.Access

  @token "correct-horse-battery"
  @locked %{token: @token, hosts: ["ops.example"], cookie: "snakepit_1"}
  @open %{@locked | token: nil}

  defp check(access, fields) do
    {headers, fields} = Keyword.pop(fields, :headers, [])
    host = if List.keymember?(headers, "host", 0), do: [], else: [{"host", "localhost:4040"}]
    request = %{method: "GET", path: "/", query: "", headers: host ++ headers, body: ""}
    Access.check(Map.merge(request, Map.new(fields)), access)
  end

  test "a name that is not this server's is refused, with and without a token" do
    for name <- ~w(localhost LOCALHOST:1 127.0.0.1:4040 [::1]:4040 [::1] 10.1.2.3:80 ops.example),
        do: assert(check(@open, headers: [{"host", name}]) == {:ok, :none}, name)

    for name <- ["evil.example:4040", "localhost.evil.example", "", "127.0.0.1.evil.example", "1"] do
      assert {:refuse, 403, _why} = check(@open, headers: [{"host", name}])
      shown = [query: "token=" <> @token, headers: [{"host", name}]]
      assert {:refuse, 403, _why} = check(@locked, shown)
    end
  end

  test "the token is taken from the URL, the cookie or the header, and has to be all of it" do
    assert check(@locked, query: "token=#{@token}") == {:ok, :in_url}

    assert check(@locked, headers: [{"cookie", "a=b; snakepit_1=#{@token}; c=d"}]) ==
             {:ok, :known}

    assert check(@locked, headers: [{"authorization", "Bearer " <> @token}]) == {:ok, :known}

    for wrong <- [
          [],
          [query: "token=" <> String.slice(@token, 0..-2//1)],
          [query: "token=#{@token}x"],
          [query: "token=%"],
          [query: "other=#{@token}"],
          [headers: [{"cookie", "snakepit_2=#{@token}"}]],
          [headers: [{"authorization", "Basic " <> @token}]]
        ],
        do: assert({:refuse, 401, _why} = check(@locked, wrong))
  end

  test "the cookie is for this site's requests alone, and not for scripts" do
    cookie = Access.cookie(@locked)
    assert cookie =~ "HttpOnly" and cookie =~ "SameSite=Strict"
    assert cookie =~ "snakepit_1=" <> @token
  end

  test "a post has to come from the page" do
    own = {"x-snakepit-dashboard", "1"}
    post = fn headers -> check(@open, method: "POST", headers: headers) end
    assert post.([own]) == {:ok, :none}
    assert post.([own, {"origin", "http://localhost:4040"}]) == {:ok, :none}
    assert post.([own, {"sec-fetch-site", "same-origin"}]) == {:ok, :none}

    for headers <- [
          [],
          [own, {"origin", "http://evil.example"}],
          [own, {"origin", "http://localhost:4041"}],
          [own, {"origin", "null"}],
          [own, {"sec-fetch-site", "cross-site"}],
          [own, {"sec-fetch-site", "same-site"}]
        ],
        do: assert({:refuse, 403, _why} = post.(headers))
  end

  test "texts are compared as a whole" do
    assert Access.same?("abc", "abc")
    refute Access.same?("abc", "abd")
    refute Access.same?("abc", "abcd")
    refute Access.same?("", "abc")
  end
end
