# nix-build --expr '(import <nixpkgs> { }).callPackage ./orla.nix { }'
{
  lib,
  stdenv,
  fetchurl,
  installShellFiles,
}:

let
  archives = {
    x86_64-linux = {
      target = "x86_64-unknown-linux-musl";
      sha256 = "@SHA256_X86_64@";
    };
    aarch64-linux = {
      target = "aarch64-unknown-linux-musl";
      sha256 = "@SHA256_AARCH64@";
    };
  };
  system = stdenv.hostPlatform.system;
  archive = archives.${system} or (throw "orla is not built for ${system}");
in
stdenv.mkDerivation rec {
  pname = "orla";
  version = "@VERSION@";

  src = fetchurl {
    url = "@BASE_URL@/orla-${version}-${archive.target}.tar.gz";
    inherit (archive) sha256;
  };

  nativeBuildInputs = [ installShellFiles ];

  installPhase = ''
    runHook preInstall
    install -D orla $out/bin/orla
    installManPage man/*.1
    installShellCompletion --bash --name orla.bash completions/orla.bash
    installShellCompletion --zsh --name _orla completions/_orla
    installShellCompletion --fish --name orla.fish completions/orla.fish
    runHook postInstall
  '';

  meta = {
    description = "Serves programs, APIs and MCP servers as tools over MCP";
    homepage = "@REPOSITORY@";
    license = with lib.licenses; [
      mit
      asl20
    ];
    mainProgram = "orla";
    platforms = builtins.attrNames archives;
  };
}
