# The Homebrew formula of a release: deploy/release fills it in. Builds the program from its commit.
class Portcullis < Formula
  desc "Kubernetes Gateway API controller and data plane in one program"
  homepage "@SOURCE@"
  url "@SOURCE@.git", tag: "v@VERSION@", revision: "@REVISION@"
  license "Apache-2.0"

  depends_on "cmake" => :build
  depends_on "rust" => :build

  def install
    system "cargo", "install", *std_cargo_args
    man1.mkpath
    system bin/"portcullis", "man", man1
    generate_completions_from_executable(bin/"portcullis", "completions", shells: [:bash, :fish, :zsh])
  end

  test do
    assert_match "portcullis #{version} ", shell_output("#{bin}/portcullis --version")
    system bin/"portcullis", "completions", "bash"
  end
end
