"""Secrets on their way out: of any kind, from any place of an error, in any file or stream; and out of a received run.

Each token has the length and characters that its issuer gives; none is a real one.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.cli import main
from jobs.errors import ConfigError
from jobs.frozen import dump_run
from jobs.rundir import RunDir, load_run
from jobs.secrets import REDACTED, redact, redacted, redacted_traceback
from tests.support.cli import files, printed
from tests.support.fake_runs import a_run, prepared
from tests.support.paths import ROOT

pytestmark = pytest.mark.red_team

LETTERS = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC2dF4hJ6kL8n"
HEX = "0123456789abcdef" * 4
PLAIN = "hunter2-horse"

TOKENS = {
    "Anthropic": f"sk-ant-api03-{LETTERS}{LETTERS}-{LETTERS[:11]}AA",
    "AWS": "AKIA" + "ABCD2345" * 2,
    "Azure": f"AccountKey={LETTERS}{LETTERS}{LETTERS[:6]}==",
    "DigitalOcean": f"dop_v1_{HEX}",
    "Docker Hub": f"dckr_pat_{LETTERS[:27]}",
    "GitHub": f"ghp_{LETTERS[:36]}",
    "GitHub, fine-grained": f"github_pat_{LETTERS[:22]}_{LETTERS}",
    "GitLab": f"glpat-{LETTERS[:20]}",
    "GitLab deploy": f"gldt-{LETTERS[:20]}",
    "GitLab job": f"glcbt-64_{LETTERS[:20]}",
    "Google": f"AIza{LETTERS[:35]}",
    "Google OAuth": f"ya29.{LETTERS}",
    "Hugging Face": f"hf_{LETTERS[:34]}",
    "JSON web token": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{LETTERS}",
    "npm": f"npm_{LETTERS[:36]}",
    "NVIDIA": f"nvapi-{LETTERS}{LETTERS[:24]}",
    "OpenAI": f"sk-{LETTERS[:20]}T3BlbkFJ{LETTERS[:20]}",
    "OpenAI project": f"sk-proj-{LETTERS}{LETTERS[:34]}T3BlbkFJ{LETTERS}",
    "PyPI": f"pypi-AgEIcHlwaS5vcmc{LETTERS}{LETTERS}",
    "SendGrid": f"SG.{LETTERS[:22]}.{LETTERS}abc",
    "Slack": f"xoxb-123456789012-1234567890123-{LETTERS[:24]}",
    "Slack app": f"xapp-1-A0123456789-1234567890123-{HEX}",
    "Stripe": f"sk_live_{LETTERS[:24]}",
    "Vault": f"hvs.{LETTERS}{LETTERS}{LETTERS}",
    "W&B": f"wandb_v1_{LETTERS}{LETTERS}",
    "Adobe": f"p8e-{HEX[:32]}",
    "age": "AGE-SECRET-KEY-1" + "QPZRY9X8GF2TVDW0" * 4,
    "Airtable": f"pat{LETTERS[:14]}.{HEX}",
    "Alibaba Cloud": f"LTAI{LETTERS[:20]}",
    "Artifactory": f"AKCp{LETTERS}{LETTERS[:29]}",
    "Artifactory reference": f"cmVmd{LETTERS}{LETTERS[:19]}",
    "Atlassian": f"ATATT3{LETTERS}-{LETTERS}={HEX[:8]}",
    "Cloudflare": f"v1.0-{HEX[:24]}-{HEX}",
    "Databricks": f"dapi{HEX[:32]}",
    "Doppler": f"dp.pt.{LETTERS}abc",
    "Dynatrace": f"dt0c01.{LETTERS[:24]}.{LETTERS}{LETTERS[:24]}",
    "Figma": f"figd_{LETTERS[:20]}-{LETTERS[:20]}",
    "Fireworks": f"fw_{LETTERS[:24]}",
    "Fly.io": f"fm2_{LETTERS}{LETTERS}",
    "GitLab runner": f"GR1348941{LETTERS[:20]}",
    "Grafana": f"glsa_{LETTERS[:32]}_{HEX[:8]}",
    "Grafana cloud": f"glc_{LETTERS}{LETTERS}",
    "Groq": f"gsk_{LETTERS}{LETTERS[:12]}",
    "Harness": f"pat.{LETTERS[:22]}.{HEX[:24]}.{LETTERS[:20]}",
    "Heroku": f"HRKU-{HEX[:8]}-{HEX[:4]}-{HEX[:4]}-{HEX[:4]}-{HEX[:12]}",
    "Jina": f"jina_{LETTERS}{LETTERS[:20]}",
    "LangSmith": f"lsv2_pt_{HEX[:32]}_{HEX[:10]}",
    "Linear": f"lin_api_{LETTERS}",
    "New Relic": f"NRAK-{LETTERS[:27].upper()}",
    "New Relic browser": f"NRJS-{HEX[:19]}",
    "Notion": f"ntn_12345678901{LETTERS[:35]}",
    "OpenAI session": f"sess-{LETTERS}",
    "OpenShift": f"sha256~{LETTERS}abc",
    "Perplexity": f"pplx-{LETTERS}{LETTERS[:8]}",
    "Pinecone": f"pcsk_{LETTERS[:6]}_{LETTERS}{LETTERS[:23]}",
    "PlanetScale": f"pscale_pw_{LETTERS}abc",
    "Postman": f"PMAK-{HEX[:24]}-{HEX[:34]}",
    "Prefect": f"pnu_{LETTERS[:36]}",
    "Pulumi": f"pul-{HEX[:40]}",
    "Replicate": f"r8_{LETTERS[:37]}",
    "RubyGems": f"rubygems_{HEX[:48]}",
    "RunPod": f"rpa_{LETTERS.upper()}ABCD",
    "Sentry": f"sntryu_{HEX}",
    "Shopify": f"shpat_{HEX[:32]}",
    "Slack webhook": f"hooks.slack.com/services/T0123456789/B0123456789/{LETTERS[:24]}",
    "Square": f"sq0atp-{LETTERS[:22]}",
    "Tailscale": f"tskey-auth-{LETTERS[:12]}-{LETTERS[:20]}",
    "Together": f"tgp_v1_{LETTERS}_-a",
    "Twilio": f"SK{HEX[:32]}",
    "xAI": f"xai-{LETTERS}{LETTERS}",
    "Yandex": f"AQVN{LETTERS[:35]}abc",
    "1Password": f"ops_eyJ{LETTERS}{LETTERS}",
    "Aiven": f"AVNS_{LETTERS[:20]}",
    "Bitbucket": f"ATBB{LETTERS[:32]}",
    "Buildkite": f"bkua_{HEX[:40]}",
    "Cerebras": f"csk-{HEX[:48]}",
    "CircleCI": f"CCIPAT_{LETTERS[:22]}_{HEX[:40]}",
    "Clojars": f"CLOJARS_{HEX[:60]}",
    "Contentful": f"CFPAT-{LETTERS}abc",
    "Discord": f"discord.com/api/webhooks/123456789012345678/{LETTERS}_{LETTERS[:27]}",
    "Doppler service": f"dp.st.prd.{LETTERS}",
    "Google OAuth client": f"GOCSPX-{LETTERS[:28]}",
    "Google OAuth refresh": f"1//0g{LETTERS}{LETTERS}",
    "Infracost": f"ico-{LETTERS[:32]}",
    "Mailgun": f"key-{HEX[:32]}",
    "Microsoft Teams": f"webhook.office.com/webhookb2/{HEX[:32]}@{HEX[:32]}/IncomingWebhook/{HEX[:32]}",
    "Modal": f"ak-{LETTERS[:22]}",
    "Netlify": f"nfp_{LETTERS[:36]}",
    "Neptune": f"eyJhcGlf{LETTERS}{LETTERS}=",
    "Notion of before": f"secret_{LETTERS}abc",
    "ReadMe": f"rdme_{HEX}abcdef",
    "Render": f"rnd_{LETTERS[:28]}",
    "Sendinblue": f"xkeysib-{HEX}-{HEX[:16]}",
    "Sourcegraph": f"sgp_{HEX[:16]}_{HEX[:40]}",
    "Supabase": f"sbp_{HEX[:40]}",
    "Telegram": f"bot1234567890:AA{LETTERS[:33]}",
    "Terraform": f"{LETTERS[:14]}.atlasv1.{LETTERS}{LETTERS}",
    "Typeform": f"tfp_{LETTERS}_{LETTERS[:12]}",
}
PUTTY_KEY = f"""PuTTY-User-Key-File-3: ssh-ed25519
Encryption: none
Public-Lines: 1
AAAAC3Nz
Private-Lines: 2
{LETTERS}{HEX[:24]}
{PLAIN.replace("-", "")}
Private-MAC: {HEX}"""
# Secrets that no token's shape shows: the text around them does. Each ends with PLAIN, which must go.
NAMED = [
    f"export DB_PASS={PLAIN}",
    f"MYSQL_PWD={PLAIN} mysqldump",
    f"PASS={PLAIN}",
    f"db_pass: {PLAIN}",
    f"mysql --password {PLAIN}",
    f"sshpass -p {PLAIN} ssh node1",
    f"docker login -u me -p {PLAIN} registry",
    f"curl -s -u me:{PLAIN} https://host",
    f"wandb login --relogin {PLAIN}",
    f"https://me:{PLAIN}@host/x",
    f"https:/me:{PLAIN}@host/x",
    f"https://me:p@ss-{PLAIN}@host/x",
    f"redis://:{PLAIN}@host:6379/0",
    f"['hf', '--token', '{PLAIN}']",
    f"('api_key', '{PLAIN}')",
    f"Authorization: Basic {PLAIN.replace('-', '')}",
    f'{{"api_key": "{PLAIN}"}}',
    f"-----BEGIN OPENSSH PRIVATE KEY-----\\n{PLAIN.replace('-', '')}",
    f"setenv HF_TOKEN {PLAIN}",
    f"set -gx HF_TOKEN {PLAIN}",
    f"aws configure set aws_secret_access_key {PLAIN}",
    f"wandb login --key={PLAIN}",
    f"curl -H 'Authorization: Token {PLAIN}' https://host",
    f"Cookie: session={PLAIN}",
    f"https://host/blob?se=2027&sig={PLAIN}",
    f"https://{HEX[:32]}{PLAIN}@host/x",
    f"machine host login me password {PLAIN}",
    f"DB_PASS+={PLAIN}",
    f"DB_PASS=$'{PLAIN}'",
    f"DB_PASS=a,{PLAIN}",
    f"--password a,b,{PLAIN}",
    """DB_PASS='it'"'"'s '"'"' """ + PLAIN + "'",
    f"DB_PASS='it'\\''s {PLAIN}'",
    f"mysql -p{PLAIN}",
    f"mysqldump --port=3306 -u me -p'{PLAIN}' base > /tmp/x",
    f"['mariadb', '-p{PLAIN}']",
    f"http_proxy=bob:{PLAIN}@proxy",
    f"postgresql://u:pa/{PLAIN}@db",
    f"pass = {PLAIN}",
    f"pw={PLAIN}",
    f"TF_VAR_db_pw={PLAIN}",
    f"https://h/x?key={PLAIN}",
    f"ldapsearch -x -D cn=a -w {PLAIN} -b dc=x",
    f"mount -t cifs //u:{PLAIN}@h/share /mnt",
    f"echo {PLAIN} | kinit me",
    f"echo {PLAIN} | sudo -S ls",
    f"htpasswd -b f me {PLAIN}",
    f"password\uff1d{PLAIN}",
    f"DB_PASS := {PLAIN}",
    f"'password' => '{PLAIN}'",
    f"<password>{PLAIN}</password>",
    f"db: {{user: u, pass: {PLAIN}}}",
    f"  pass: {PLAIN}",
    f'DB_PASS="a\\"b {PLAIN}"',
    f'token="{PLAIN}',
    f'TOKEN = "{PLAIN}"',
    f"curl -x bob:{PLAIN}@proxy:80 http://h",
    f"curl --proxy-user bob:{PLAIN} http://h",
    f"Cookie: a=1; session={PLAIN}",
    f"printf '%s' '{PLAIN}' | docker login --password-stdin",
    f"kinit me <<< {PLAIN}",
    f"openssl enc -k {PLAIN} -in x",
    f"openssl rsa -passin pass:{PLAIN}",
    f"redis-cli -h h -a {PLAIN}",
    f"smbclient //h/s -U bob%{PLAIN}",
    f"lftp -u bob,{PLAIN} host",
    f"CREATE USER u IDENTIFIED BY '{PLAIN}'",
    f"//registry.npmjs.org/:_authToken={PLAIN}",
    f"ssh-keygen -t rsa -N {PLAIN} -f x",
    f"zip -P {PLAIN} a.zip b",
    f"7z a -p{PLAIN} x",
    f'psk="{PLAIN}"',
    f"Authorization: Digest {PLAIN}",
    f'"Authorization": "Token {PLAIN}"',
    f"curl -H 'Authorization: {PLAIN}'",
    f"proxy: bob:{PLAIN}@h",
    f"PresharedKey = {PLAIN}",
    f"wandb_key={PLAIN}",
    f"x-api-key: {PLAIN}",
    f"passwort: {PLAIN}",
    f"az login -u u -p {PLAIN}",
    f"git -c http.extraheader='AUTHORIZATION: bearer {PLAIN[:8]}-{PLAIN}' clone x",
    f"Authorization: Splunk {PLAIN}",
    f"s3://{'AKIA' + 'ABCD2345' * 2}:{PLAIN}@bucket",
    f"rclone --sftp-pass {PLAIN}",
    f"SLURM_JWT={PLAIN}",
    f"HF_TOKEN\u200b={PLAIN}",
    f"su root <<< {PLAIN}",
    f"HF_TO\u00adKEN={PLAIN}",
    f"hf_\u2060{LETTERS[:34]}",
    f"wandb login --relogin {HEX[:20]}\u200b{HEX[20:40]}",
    f"net use Z: \\\\srv\\share {PLAIN} /user:DOM\\bob",
    f"net use \\\\srv\\share /user:bob {PLAIN} /persistent:no",
    f"NET.EXE USE * \\\\srv\\share {PLAIN}",
    f'net use "\\\\srv\\my share" "{PLAIN}" /user:"DOM\\bob smith"',
    f"net user bob {PLAIN} /add",
    f"psexec \\\\srv -u bob -p {PLAIN} cmd",
    f"plink -ssh bob@h -pw {PLAIN} ls",
    f"cmdkey /add:srv /user:bob /pass:{PLAIN}",
    f"schtasks /create /ru bob /rp {PLAIN} /tn x",
    f"xfreerdp /u:bob /p:{PLAIN} /v:h",
    f'ConvertTo-SecureString "{PLAIN}" -AsPlainText -Force',
    f"New-Object PSCredential('bob', '{PLAIN}')",
    f"nmcli dev wifi connect ap password {PLAIN}",
    f"mc alias set my https://h ADMIN {PLAIN}",
    f"kaggle_key: {PLAIN}",
    PUTTY_KEY,
    PUTTY_KEY.partition("Private-MAC")[0],
]
# Ordinary lines of a set-up, which look a little like the above.
ORDINARY = [
    "--goodput 'time_to_first_token:3000 inter_token_latency:20 time_per_output_token:50.5'",
    "docker login -u me --password-stdin registry < ~/.registry",
    "export NCCL_SOCKET_KEY=1",
    "net use \\\\srv\\share *",
    "net use Z: \\\\srv\\share /user:bob *",
    "net use Z: /delete",
    "the net use a run makes of memory, and net user growth of 5 %",
    "soft\u00adhyphens, zero\u200bwidth, and a family \U0001f468\u200d\U0001f469",
    "export SSH_KEY=/home/me/.ssh/id_ed25519",
    "set -x",
    "git clone https://me@host/project",
    "mysql -u me -p base",
    "mysql --protocol=tcp -P 3306",
    "mkdir -p data; mysql < x.sql; mkdir -parents",
    "the mysql client; rsync -pav a b",
    "forward pass = 3.2 ms",
    "PASS: test_abc",
    "forward pass: compiled",
    "pass=2",
    "tokens=512 sort_key: name",
    "docker://ubuntu:22.04@sha256:0123456789abcdef",
    "http://host:8080/x@y",
    "tcp://node01:29500",
    "commit 3fcf33a9d8f3c4b6a1e2d3c4b5a697887766554433",
    "awk '{print $1$2}'",
    "key: cluster.partition",
    "max_pw=3",
    "wandb login --relogin",
    "wandb login --host https://h",
    "step_time_s = 3",
    "mysql -u me -p base",
    "risk-free sk-",
    "docker run -p 80:80 x; login",
    "authors: a",
    "pwd=/home/me",
    "hf_xyz",
    "secret_name",
    "PASSED",
    "sha256:abc",
    "curl -u me https://h",
    "author: x",
    "Authorization failed for user",
    "a proxy for b:c@d",
    "--key value",
    "Cost per token (s)",
]


@pytest.mark.parametrize("kind", TOKENS)
def test_every_kind_of_token_is_replaced_wherever_it_stands(kind: str) -> None:
    token = TOKENS[kind]
    for text in (token, f"path/{token}/x", f"'{token}'", f"key {token}, more", f"a={token};", f"{token}\n"):
        assert token[-12:] not in redact(text)
        assert REDACTED in redact(text)
        assert redact(redact(text)) == redact(text)


def test_every_shape_has_a_token_that_no_other_shape_finds() -> None:
    with Path(str(resources.files("jobs") / "secret_shapes.csv")).open(newline="", encoding="utf-8") as file:
        shapes = {
            f"{row['kind']} {row['prefix']}": re.compile(f"(?:{row['prefix']})[{row['characters']}]{{{row['least']},}}")
            for row in csv.DictReader(file)
        }
    found_by = [{name for name, shape in shapes.items() if shape.match(token)} for token in TOKENS.values()]
    assert [name for name in shapes if {name} not in found_by] == []


@pytest.mark.parametrize("text", NAMED)
def test_a_password_is_known_by_what_stands_before_it(text: str) -> None:
    shown = redact(text)
    assert PLAIN not in shown
    assert PLAIN.replace("-", "") not in shown
    assert REDACTED in shown


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_line_is_kept(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("value", ["8letters", "nine-char", "fifteen-letters"])
def test_a_short_secret_of_the_environment_is_replaced(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASS", value)
    assert redact(f"login as me with {value} failed") == f"login as me with {REDACTED} failed"


def test_seven_characters_of_the_environment_stay_and_of_two_secrets_the_longer_is_replaced_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("A_PASS", "letters"), ("B_PASS", PLAIN), ("C_PASS", f"{PLAIN}-stable")):
        monkeypatch.setenv(name, value)
    assert redact(f"letters of {PLAIN}-stable") == f"letters of {REDACTED}"


def test_a_secret_of_the_environment_is_replaced_as_json_python_and_urls_write_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = 'pa"ss wo\\rd/é\n12'
    monkeypatch.setenv("MY_SECRET", secret)
    assert redact(f"<{secret}>") == f"<{REDACTED}>"
    assert redact(json.dumps([secret])) == json.dumps([REDACTED])
    assert redact(repr({"x": secret})) == repr({"x": REDACTED})
    assert redact("https://host/?q=pa%22ss%20wo%5Crd%2F%C3%A9%0A12") == f"https://host/?q={REDACTED}"


def with_note(error: Exception, note: str) -> Exception:
    error.add_note(note)
    return error


def with_cause(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def with_context(error: BaseException, context: BaseException) -> BaseException:
    error.__context__ = context
    return error


HF = TOKENS["Hugging Face"]
ERRORS: dict[str, Callable[[], BaseException]] = {
    "argument": lambda: RuntimeError(f"401 for {HF}"),
    "file name": lambda: FileNotFoundError(2, "no such file", f"/cache/{HF}/model"),
    "second file name": lambda: OSError(18, "cross-device", "/a", None, f"/b/{HF}"),
    "command": lambda: subprocess.CalledProcessError(1, ["hf", "auth", "login", "--token", PLAIN]),
    "expired command": lambda: subprocess.TimeoutExpired(f"wandb login {HEX[:40]}", 3),
    "text that cannot be encoded": lambda: raised_by(lambda: f"{HF} é".encode("ascii")),
    "bytes that cannot be decoded": lambda: UnicodeDecodeError("utf-8", f"{HF}".encode() + b"\xff", 0, 1, HF),
    "note": lambda: with_note(ValueError("x"), f"while asking with {HF}"),
    "key": lambda: KeyError(f"token={HF}"),
    "key that is a tuple": lambda: KeyError(("api_key", PLAIN)),
    "nested data": lambda: RuntimeError({"headers": [("x", {"authorization": f"Bearer {HF}"})]}),
    "group": lambda: ExceptionGroup("two", [ValueError(HF), ExceptionGroup("more", [with_note(ValueError("y"), HF)])]),
    "cause": lambda: with_cause(RuntimeError("x"), OSError(2, "no", f"/{HF}")),
    "context": lambda: with_context(RuntimeError("x"), KeyError(HF)),
    "context of a context": lambda: with_context(RuntimeError("x"), with_context(KeyError("y"), KeyError(HF))),
    "both": lambda: with_context(with_cause(RuntimeError("x"), ValueError("y")), KeyError(HF)),
    "module": lambda: ImportError("no", name=HF, path=f"/{HF}.py"),
    "attribute of a type": lambda: type(HF, (Exception,), {})("x"),
}


def raise_(error: BaseException) -> None:
    raise error


def raised_by(work: Callable[[], object]) -> BaseException:
    try:
        work()
    except Exception as error:  # noqa: BLE001 (every kind of exception is wanted)
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("kind", ERRORS)
def test_no_part_of_an_exception_carries_a_secret_into_a_traceback(kind: str) -> None:
    shown = redacted_traceback(raised_by(partial(raise_, ERRORS[kind]())))
    assert "Traceback (most recent call last)" in shown
    for secret in (HF, HF[8:], PLAIN, HEX[:40]):
        assert secret not in shown


def test_an_error_that_nothing_catches_is_printed_without_secrets_by_ranks_and_commands(tmp_path: Path) -> None:
    body = (
        "import os, sys, threading\n"
        "def fail(): raise OSError(2, 'no', '/x/' + os.environ['PLACE'])\n"
        "thread = threading.Thread(target=fail); thread.start(); thread.join()\n"
        "print('printed', os.environ['PLACE']); sys.stdout.write(os.environ['PLACE']); sys.stdout.flush()\n"
        "fail()\n"
    )
    for guard in ("from jobs.output import outlive_full_disk as guard; guard()\n",
                  "from jobs.output import guarded_streams; from jobs.secrets import redact\n"
                  "guard = guarded_streams(redact); guard.__enter__()\n"):  # fmt: skip
        env = os.environ | {"PLACE": HF, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", guard + body], env=env, cwd=tmp_path, capture_output=True,
                              text=True, check=False)  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.count(f"/x/{REDACTED}") == 2, done.stderr
        assert f"printed {REDACTED}\n" in done.stdout
        assert HF not in done.stdout + done.stderr


def test_the_keys_of_records_are_redacted_as_their_values_are() -> None:
    assert HF not in json.dumps(redacted({"event": "failed", "by": {HF: 1, "deep": [{"x": (HF, {HF: HF})}]}}))


def test_a_record_keeps_what_is_no_secret_and_loses_a_value_whose_key_names_one() -> None:
    record = {"api_key": "a short one", "tokens": 3, "event": "failed", "password": None, 7: "seven"}
    assert redacted(record) == record | {"api_key": REDACTED}


@pytest.mark.parametrize(
    ("override", "key"),
    [
        (f"cluster.setup=['wandb login {HEX[:40]}']", "cluster.setup"),
        (f"cluster.setup=['export DB_PASS={PLAIN}']", "cluster.setup"),
        (f"cluster.env={{DB_PASS: {PLAIN}}}", "cluster.env.DB_PASS"),
        (f"data.path='https://me:{PLAIN}@host/x'", "data.path"),
        (f"job.init_from='https://:{PLAIN}@host/x'", "job.init_from"),
        (f"runs_dir='/x/https://me:{PLAIN}@host/x'", "runs_dir"),
        ("cluster.env={OTHER: '${oc.env:HF_TOKEN}'}", "cluster.env.OTHER"),
        ("cluster.setup=['login ${oc.env:HF_TOKEN}']", "cluster.setup"),
    ],
)  # fmt: skip
def test_a_secret_is_refused_before_and_after_values_are_settled(
    override: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Too short to be recognized once it is resolved.
    monkeypatch.setenv("HF_TOKEN", "short")
    arguments = ["launcher=dry", "cluster=generic_slurm", f"runs_dir={tmp_path}", override]
    assert main(["submit", *arguments]) == 2
    shown = printed(capsys)
    assert f"{key} contains a password, token or key" in shown
    assert PLAIN not in shown
    assert files(tmp_path) == set()


def received(tmp_path: Path, setup: str) -> RunDir:
    """A run directory whose config.yaml was edited."""
    run = a_run("run", sweep="received")
    run.cluster.setup = ["module load gcc"]
    directory = prepared(tmp_path / "received", run)
    directory.config.write_text(directory.config.read_text().replace("module load gcc", setup))
    return directory


@pytest.mark.parametrize(
    "setup", ["curl https://host/${oc.env:HF_TOKEN}", "x ${oc.decode:1} y", "${name}", "\\\\${oc.env:HF_TOKEN}"]
)
def test_a_received_configuration_reads_nothing_of_the_environment(
    setup: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", HF)
    directory = received(tmp_path, setup)
    with pytest.raises(ConfigError, match="is an interpolation, and a frozen configuration has none"):
        load_run(directory.config)
    main(["resume", str(tmp_path / "received"), "--launcher", "script"])
    assert HF not in printed(capsys)
    assert all(HF not in path.read_text() for path in directory.path.rglob("*") if path.is_file())


BEGINNINGS = (
    "docker login ", "docker ", "mysql ", "curl -u ", "-----BEGIN PRIVATE KEY-----", "token=", "https://a:", "://",
    "machine x login y password ", "wandb login --a=b ", "Private-Lines: 1 ", "DB_PASS='a", "DB_PASS=a,", "a.",
    "eyJaaaa", "eyJaaaaaaaa-", "--a ", "token_", "token-", "X_KEY_", "setenv token_", "set -x", "mysql-", "-----END ",
    "SSH_KEY=/a", "pw=1,", 'token="\\', "token='\\''", "a.atlasv1.", "<password", "<password>", "password: ", "\\",
    "wandb login --a ", "wandb login --a", "proxy a:", "PWD='/", "echo ", "//a:", "&key=",
)  # fmt: skip
HEADS = ("", "wandb login ", "setenv ", "curl ", "token=", "-----BEGIN PRIVATE KEY-----\n")
FEW = 1_500


def cpu_time_s(text: str) -> float:
    began = time.process_time()
    redact(text, [])
    return time.process_time() - began


def pieces() -> set[str]:
    """Beginnings of every secret that these tests know: tokens cut at half, the others after each word and sign."""
    found = {*BEGINNINGS, *(token[: len(token) // 2] for token in TOKENS.values())}
    for text in (*NAMED, *ORDINARY):
        found |= {text[: end.end()] for end in re.finditer(r"\w+ |[=:@'\"]", text)}
    return found


def test_the_time_to_find_secrets_grows_with_the_text_and_not_with_its_square() -> None:
    """Texts of others are redacted too: a beginning without end, repeated, must not stop a command.

    Eight times the text takes 8 times the time where it is linear, 64 times where it is quadratic. Small texts come
    first, so that an exponential search is found while it still ends.
    """
    ordinary_s = min(cpu_time_s("\n".join(ORDINARY) * 3) for _ in range(3)) / (3 * len("\n".join(ORDINARY)))
    for piece in sorted(pieces()):
        for head in HEADS if piece in BEGINNINGS else ("",):
            assert cpu_time_s(head + piece * 20) < 2, (head, piece)
            text = head + piece * (FEW // len(piece) + 1)
            if cpu_time_s(text) > 8 * ordinary_s * len(text):
                once = min(cpu_time_s(text) for _ in range(3))
                more = min(cpu_time_s(head + piece * (8 * (FEW // len(piece) + 1))) for _ in range(2))
                assert more < 24 * once, (head, piece, once, more)


@given(
    st.lists(st.sampled_from(["\\", "$", "{", "}", "${", "${oc.env:HOME}", "a", " ", "\n", "'", '"', ":"])).map("".join)
)
def test_what_looks_like_an_interpolation_in_a_run_stays_text(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    run = a_run()
    run.cluster.setup, run.cluster.env = [text], {"VALUE": text}
    file = tmp_path_factory.mktemp("run") / "config.yaml"
    file.write_text(dump_run(run))
    assert load_run(file).cluster == run.cluster
