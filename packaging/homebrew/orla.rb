class Orla < Formula
  desc "Serves programs, APIs and MCP servers as tools over MCP"
  homepage "@REPOSITORY@"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  depends_on :linux

  on_arm do
    url "@BASE_URL@/orla-@VERSION@-aarch64-unknown-linux-musl.tar.gz"
    sha256 "@SHA256_AARCH64@"
  end

  on_intel do
    url "@BASE_URL@/orla-@VERSION@-x86_64-unknown-linux-musl.tar.gz"
    sha256 "@SHA256_X86_64@"
  end

  def install
    bin.install "orla"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/orla.bash" => "orla"
    zsh_completion.install "completions/_orla"
    fish_completion.install "completions/orla.fish"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/orla --version")
  end
end
